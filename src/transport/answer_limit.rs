//! Connections on which a peer may send only a limited number of bytes while we send nothing.
//! HTTP/1 allows an unlimited number of interim responses (100, 103), and a thread would be busy
//! reading them until the request times out.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tower_service::Service;

/// Maximum bytes that a peer may send between two of our writes. Answers have a few hundred bytes;
/// over HTTP/2 we also write at least once per flow-control window, which resets the count.
pub(super) const MAX_IN_A_ROW: usize = 4 << 20;

/// Connects like [`HttpConnector`], and wraps each connection in a [`LimitedStream`].
#[derive(Debug, Clone)]
pub(crate) struct LimitedConnector {
    pub(super) http: HttpConnector,
    pub(super) max_in_a_row: usize,
}

impl Service<Uri> for LimitedConnector {
    type Response = TokioIo<LimitedStream<TcpStream>>;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.http.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.http.call(uri);
        let max_in_a_row = self.max_in_a_row;
        Box::pin(async move {
            let io = connecting.await?.into_inner();
            Ok(TokioIo::new(LimitedStream {
                io,
                n_in_a_row: 0,
                max_in_a_row,
            }))
        })
    }
}

/// A connection that fails once its peer has sent more than `max_in_a_row` bytes since our last
/// write.
#[derive(Debug)]
pub(crate) struct LimitedStream<I> {
    io: I,
    n_in_a_row: usize,
    max_in_a_row: usize,
}

impl<I: Connection> Connection for LimitedStream<I> {
    fn connected(&self) -> Connected {
        self.io.connected()
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for LimitedStream<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.n_in_a_row > self.max_in_a_row {
            return Poll::Ready(Err(io::Error::other("the peer's answer has no end")));
        }
        let n_before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        let n_read = buf.filled().len() - n_before;
        self.n_in_a_row = self.n_in_a_row.saturating_add(n_read);
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for LimitedStream<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.n_in_a_row = 0;
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.n_in_a_row = 0;
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn a_peer_that_never_lets_us_speak_is_cut_off() {
        let (near, mut far) = duplex(64 << 10);
        let mut near = LimitedStream {
            io: near,
            n_in_a_row: 0,
            max_in_a_row: MAX_IN_A_ROW,
        };
        let interim = b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1_000);
        let sending = async { while far.write_all(&interim).await.is_ok() {} };
        let reading = async move {
            let mut n_read = 0;
            let mut buf = vec![0; 64 << 10];
            for _ in 0..3 {
                while n_read < MAX_IN_A_ROW / 2 {
                    n_read += near.read(&mut buf).await.unwrap();
                }
                // A request resets the count.
                near.n_in_a_row = 0;
            }
            loop {
                match near.read(&mut buf).await {
                    Ok(n) => n_read += n,
                    Err(error) => return (n_read, error.to_string()),
                }
            }
        };
        let ((), (n_read, error)) = tokio::join!(sending, reading);
        assert_eq!(error, "the peer's answer has no end");
        assert!(n_read <= 2 * MAX_IN_A_ROW, "{n_read} bytes");
    }
}
