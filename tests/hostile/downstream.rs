//! Implements the sidecar's downstream by hand, because no library answers this badly.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Accepts everything.
    Good,
    /// Sends `100 Continue` without end.
    Continue,
    /// Sends `103 Early Hints` without end.
    EarlyHints,
    /// Sends one byte of an answer every 300 ms.
    Slow,
    /// Sends an answer of a terabyte.
    Huge,
    /// Reads requests and never answers.
    Silent,
}

pub(crate) struct Downstream {
    pub(crate) address: SocketAddr,
    pub(crate) switch: Switch,
    serving: JoinHandle<()>,
}

#[derive(Debug, Clone)]
pub(crate) struct Switch(Arc<watch::Sender<Behaviour>>);

/// A guard that resets the downstream to good behaviour on drop.
pub(crate) struct Reset(Switch);

impl Switch {
    pub(crate) fn behave(&self, behaviour: Behaviour) -> Reset {
        self.0.send_replace(behaviour);
        Reset(self.clone())
    }
}

impl Drop for Reset {
    fn drop(&mut self) {
        self.0.0.send_replace(Behaviour::Good);
    }
}

impl Downstream {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let switch = Switch(Arc::new(watch::Sender::new(Behaviour::Good)));
        let sender = Arc::clone(&switch.0);
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                // If the sidecar dies, its connections end; other checks report that.
                connections.spawn(serve(stream, sender.subscribe()));
            }
        });
        Self {
            address,
            switch,
            serving,
        }
    }
}

impl Drop for Downstream {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(mut stream: TcpStream, behaviour: watch::Receiver<Behaviour>) -> io::Result<()> {
    let mut received = Vec::new();
    loop {
        read_request(&mut stream, &mut received).await?;
        let now = *behaviour.borrow();
        match now {
            Behaviour::Good => {
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(answer).await?;
                continue;
            }
            Behaviour::Slow => {
                let answer = "HTTP/1.1 200 OK\r\nx-filler: ".bytes();
                for byte in answer.chain(std::iter::repeat(b'x')) {
                    if *behaviour.borrow() != now {
                        return Ok(());
                    }
                    stream.write_all(&[byte]).await?;
                    sleep(Duration::from_millis(300)).await;
                }
            }
            Behaviour::Silent => {
                while *behaviour.borrow() == now {
                    sleep(Duration::from_millis(50)).await;
                }
            }
            Behaviour::Continue | Behaviour::EarlyHints | Behaviour::Huge => {
                let (begin, more) = match now {
                    Behaviour::Continue => ("", "HTTP/1.1 100 Continue\r\n\r\n"),
                    Behaviour::EarlyHints => ("", "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"),
                    _ => (
                        "HTTP/1.1 200 OK\r\ncontent-length: 1099511627776\r\n\r\n",
                        "xxxxxxxxxxxxxxxx",
                    ),
                };
                stream.write_all(begin.as_bytes()).await?;
                let more = more.repeat(1_000);
                while *behaviour.borrow() == now {
                    stream.write_all(more.as_bytes()).await?;
                }
            }
        }
        return Ok(());
    }
}

/// Reads a request with a `content-length`. Later bytes stay in `received`.
async fn read_request(stream: &mut TcpStream, received: &mut Vec<u8>) -> io::Result<()> {
    let mut body = None;
    loop {
        if body.is_none()
            && let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n")
        {
            let head = String::from_utf8_lossy(&received[..end]).to_lowercase();
            let length = head.lines().find_map(|line| {
                let length = line.strip_prefix("content-length:")?;
                length.trim().parse::<usize>().ok()
            });
            body = Some(end + 4 + length.unwrap_or(0));
        }
        if let Some(end) = body.filter(|end| received.len() >= *end) {
            received.drain(..end);
            return Ok(());
        }
        if stream.read_buf(received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
