//! Decompresses a body in steps, each within the memory that the request's permit grants.

use std::io::{self, ErrorKind, Read};

use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use hyper::header::HeaderValue;

use super::memory_permit::{BodyLimits, MemoryPermit};
use super::request_error::RequestError;

/// The supported encodings, for `accept-encoding` and `grpc-accept-encoding`.
pub(super) const ACCEPTED: HeaderValue = HeaderValue::from_static("identity,gzip,zstd,deflate");

/// Maximum zstd window, as a power of two: 8 MiB, the limit of RFC 9659 for content in HTTP. A
/// frame with a larger window is rejected, unless it needs no window.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// Minimum capacity of the output, in bytes.
const MIN_CAPACITY: usize = 4 << 10;

/// Maximum bytes of output between which other tasks run.
const STEP: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Identity,
    Gzip,
    Zstd,
    /// The zlib format. OTLP requires gzip only, but Python's exporters offer zlib too, and the
    /// Collector reads it.
    Deflate,
}

impl Encoding {
    /// Reads `content-encoding` or `grpc-encoding`.
    pub(super) fn try_new(header: Option<&HeaderValue>) -> Result<Self, RequestError> {
        let Some(header) = header else {
            return Ok(Self::Identity);
        };
        match &header.as_bytes().trim_ascii().to_ascii_lowercase()[..] {
            b"identity" | b"" => Ok(Self::Identity),
            b"gzip" | b"x-gzip" => Ok(Self::Gzip),
            b"zstd" => Ok(Self::Zstd),
            b"deflate" => Ok(Self::Deflate),
            _ => {
                let name = String::from_utf8_lossy(header.as_bytes());
                Err(RequestError::Unsupported(format!(
                    "cannot read the encoding `{name}`; send gzip, zstd, deflate or identity"
                )))
            }
        }
    }

    /// Decompresses `body`. `permit` counts the body, the output and, if there is more than one
    /// step, the decoder.
    pub(super) async fn decompress(
        self,
        body: &[u8],
        limits: &BodyLimits,
        permit: &mut MemoryPermit,
    ) -> Result<Vec<u8>, RequestError> {
        let mut rest = body;
        let mut reader = self.reader(&mut rest).map_err(|it| self.malformed(&it))?;
        let (mut output, mut len) = (Vec::new(), 0);
        loop {
            if len == output.len() {
                if len > limits.max_size() {
                    return Err(limits.too_large());
                }
                // Allow one byte more than the maximum: if it is used, the body is too large.
                let wanted = (len * 2)
                    .max(body.len().saturating_mul(4))
                    .max(MIN_CAPACITY);
                let wanted = wanted.min(limits.max_size() + 1);
                let decoder = if wanted > STEP { self.decoder_size(wanted) } else { 0 };
                permit.grow_to(body.len() + decoder + wanted)?;
                output.reserve_exact(wanted - len);
                output.resize(wanted, 0);
            }
            let end = output.len().min(len + STEP);
            match reader.read(&mut output[len..end]) {
                Ok(0) => break,
                Ok(n_read) => len += n_read,
                Err(error) => return Err(self.malformed(&error)),
            }
            if len >= STEP {
                tokio::task::yield_now().await;
            }
        }
        drop(reader);
        if !rest.is_empty() {
            return Err(self.malformed(&io::Error::other("bytes follow its end")));
        }
        output.truncate(len);
        Ok(output)
    }

    /// Returns a reader of all members of a gzip body (RFC 1952, section 2.2) or all frames of a
    /// zstd body.
    fn reader<'a>(self, body: &'a mut &[u8]) -> io::Result<Box<dyn Read + Send + 'a>> {
        Ok(match self {
            Self::Identity => Box::new(body),
            Self::Gzip => Box::new(MultiGzDecoder::new(body)),
            Self::Deflate => Box::new(ZlibDecoder::new(body)),
            Self::Zstd => {
                let mut zstd = zstd::Decoder::with_buffer(body)?;
                zstd.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Box::new(zstd)
            }
        })
    }

    /// Returns the approximate bytes of a decoder. zstd's window contains the end of the output.
    fn decoder_size(self, output: usize) -> usize {
        match self {
            Self::Identity => 0,
            Self::Gzip | Self::Deflate => 48 << 10,
            Self::Zstd => (160 << 10) + output.min(1 << ZSTD_WINDOW_LOG_MAX),
        }
    }

    fn malformed(self, error: &io::Error) -> RequestError {
        RequestError::Malformed(if error.kind() == ErrorKind::UnexpectedEof {
            "the compressed body ends early; it was truncated in transit".to_owned()
        } else {
            let encoding = format!("{self:?}").to_lowercase();
            format!("the {encoding} body cannot be decompressed: {error}")
        })
    }
}
