//! Compressed chunks in, plain bytes out, as far as there is room for them. Knows gzip, zlib and
//! zstd; does not know where chunks come from.

use flate2::{Decompress, FlushDecompress, Status};
use hyper::header::HeaderValue;
use zstd::stream::raw::{DParameter, Decoder as Zstd, InBuffer, Operation, OutBuffer};

use super::problem::Problem;

/// What we read, for `accept-encoding` and `grpc-accept-encoding`.
pub(super) const ACCEPTED: HeaderValue = HeaderValue::from_static("identity,gzip,zstd,deflate");

/// Largest zstd window, as a power of two: 8 MiB, what RFC 9659 allows for content in HTTP. A frame
/// may ask for far more, and gets an answer instead of memory, unless it is there as a whole, when
/// it needs no window. What is resident of a window has been decompressed, so the room taken covers
/// it twice at most.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// How a body is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Identity,
    Gzip,
    Zstd,
    /// The zlib format. OTLP asks for gzip only, but Python's exporters offer this too, and the
    /// Collector reads it.
    Deflate,
}

impl Encoding {
    /// Reads `content-encoding` or `grpc-encoding`.
    pub(super) fn try_new(header: Option<&HeaderValue>) -> Result<Self, Problem> {
        let Some(header) = header else {
            return Ok(Self::Identity);
        };
        let named = |name: &str| {
            header
                .as_bytes()
                .trim_ascii()
                .eq_ignore_ascii_case(name.as_bytes())
        };
        match () {
            () if named("identity") || named("") => Ok(Self::Identity),
            () if named("gzip") || named("x-gzip") => Ok(Self::Gzip),
            () if named("zstd") => Ok(Self::Zstd),
            () if named("deflate") => Ok(Self::Deflate),
            () => {
                let name = String::from_utf8_lossy(header.as_bytes());
                Err(Problem::Unsupported(format!(
                    "cannot read the encoding `{name}`; send gzip, zstd, deflate or identity"
                )))
            }
        }
    }

    /// `None` for what is not compressed.
    pub(super) fn decoder(self) -> Result<Option<Decoder>, Problem> {
        let inner = match self {
            Self::Identity => return Ok(None),
            Self::Gzip => Inner::Gzip(Decompress::new_gzip(15)),
            Self::Deflate => Inner::Zlib(Decompress::new(true)),
            Self::Zstd => {
                let mut zstd = Zstd::new().map_err(|error| malformed("zstd", &error))?;
                zstd.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG_MAX))
                    .map_err(|error| malformed("zstd", &error))?;
                Inner::Zstd(zstd)
            }
        };
        Ok(Some(Decoder {
            inner,
            at_end: false,
        }))
    }
}

/// Decompresses one body.
pub(super) struct Decoder {
    inner: Inner,
    /// Between two members or frames: the one place where a body may end.
    at_end: bool,
}

enum Inner {
    Gzip(Decompress),
    Zlib(Decompress),
    Zstd(Zstd<'static>),
}

impl Decoder {
    /// How long a body says that it is unpacked: a gzip member at its end (RFC 1952, section
    /// 2.3.1), a zstd frame at its beginning. Nobody checked that, and there may be more members or
    /// frames; zlib does not say.
    pub(super) fn claimed_len(&self, body: &[u8]) -> Option<usize> {
        let claimed = match &self.inner {
            Inner::Gzip(_) => u64::from(u32::from_le_bytes(*body.last_chunk()?)),
            Inner::Zlib(_) => return None,
            Inner::Zstd(_) => zstd::zstd_safe::get_frame_content_size(body).ok()??,
        };
        usize::try_from(claimed).ok()
    }

    /// Decompresses a piece of the body to the end of `output`. Whenever its capacity is used up,
    /// `grow`, told how much of the piece is still unread, makes more, or says why not.
    pub(super) fn feed(
        &mut self,
        mut input: &[u8],
        output: &mut Vec<u8>,
        mut grow: impl FnMut(&mut Vec<u8>, usize) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        loop {
            if output.len() == output.capacity() {
                grow(output, input.len())?;
            }
            let before = (input.len(), output.len());
            match &mut self.inner {
                Inner::Gzip(gzip) => {
                    // A gzip file is a sequence of members (RFC 1952, section 2.2): after one comes
                    // the end or another.
                    if self.at_end && !input.is_empty() {
                        *gzip = Decompress::new_gzip(15);
                        self.at_end = false;
                    }
                    if !self.at_end {
                        self.at_end = inflate(gzip, &mut input, output)
                            .map_err(|error| malformed("gzip", &error))?;
                    }
                }
                Inner::Zlib(_) if self.at_end => {
                    if !input.is_empty() {
                        return Err(malformed("deflate", &"bytes follow its end"));
                    }
                }
                Inner::Zlib(zlib) => {
                    self.at_end = inflate(zlib, &mut input, output)
                        .map_err(|error| malformed("deflate", &error))?;
                }
                Inner::Zstd(zstd) => {
                    if !(self.at_end && input.is_empty()) {
                        self.at_end = unzstd(zstd, &mut input, output)
                            .map_err(|error| malformed("zstd", &error))?;
                    }
                }
            }
            let all_read = input.is_empty() && (self.at_end || output.len() < output.capacity());
            // With input and space left, a decoder that does neither read nor write never will.
            let stalled = before == (input.len(), output.len()) && output.len() < output.capacity();
            match (all_read, stalled) {
                (true, _) => return Ok(()),
                (false, true) => {
                    return Err(malformed(
                        "compressed",
                        &"it cannot be decompressed any further",
                    ));
                }
                (false, false) => {}
            }
        }
    }

    /// Was that all, or does something lack?
    pub(super) fn finish(self) -> Result<(), Problem> {
        match self.at_end {
            true => Ok(()),
            false => Err(Problem::Malformed(
                "the compressed body ends early; it was truncated on its way".to_owned(),
            )),
        }
    }
}

/// One step; `true` at the end of the stream.
fn inflate(
    decompress: &mut Decompress,
    input: &mut &[u8],
    output: &mut Vec<u8>,
) -> Result<bool, flate2::DecompressError> {
    let n_read_before = decompress.total_in();
    let status = decompress.decompress_vec(input, output, FlushDecompress::None)?;
    let n_read = usize::try_from(decompress.total_in() - n_read_before).unwrap_or(usize::MAX);
    *input = input.get(n_read..).unwrap_or_default();
    Ok(status == Status::StreamEnd)
}

/// One step; `true` at the end of a frame, with nothing left to write.
fn unzstd(
    zstd: &mut Zstd<'static>,
    input: &mut &[u8],
    output: &mut Vec<u8>,
) -> std::io::Result<bool> {
    let start = output.len();
    let mut from = InBuffer::around(input);
    let hint = zstd.run(&mut from, &mut OutBuffer::around_pos(output, start))?;
    let n_read = from.pos();
    *input = input.get(n_read..).unwrap_or_default();
    Ok(hint == 0)
}

fn malformed(encoding: &str, error: &dyn std::fmt::Display) -> Problem {
    Problem::Malformed(format!(
        "the {encoding} body cannot be decompressed: {error}"
    ))
}
