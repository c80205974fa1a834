//! Decompresses gzip, zlib and zstd in pieces; the caller grants memory for the output.

use flate2::{Decompress, FlushDecompress, Status};
use hyper::header::HeaderValue;
use zstd::stream::raw::{DParameter, Decoder as Zstd, InBuffer, Operation, OutBuffer};

use super::request_error::RequestError;

/// The supported encodings, for `accept-encoding` and `grpc-accept-encoding`.
pub(super) const ACCEPTED: HeaderValue = HeaderValue::from_static("identity,gzip,zstd,deflate");

/// Maximum zstd window, as a power of two: 8 MiB, the limit of RFC 9659 for content in HTTP. A
/// frame with a larger window is rejected, unless it has arrived in full and needs no window. Only
/// the decompressed part of a window uses memory, which the request's permit counts.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

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
                Err(RequestError::Unsupported(format!(
                    "cannot read the encoding `{name}`; send gzip, zstd, deflate or identity"
                )))
            }
        }
    }

    pub(super) fn decoder(self) -> Result<Option<Decoder>, RequestError> {
        let codec = match self {
            Self::Identity => return Ok(None),
            Self::Gzip => Codec::Gzip(Decompress::new_gzip(15)),
            Self::Deflate => Codec::Zlib(Decompress::new(true)),
            Self::Zstd => {
                let mut zstd = Zstd::new().map_err(|error| malformed("zstd", &error))?;
                zstd.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG_MAX))
                    .map_err(|error| malformed("zstd", &error))?;
                Codec::Zstd(zstd)
            }
        };
        Ok(Some(Decoder {
            codec,
            at_end: false,
        }))
    }
}

impl Encoding {
    /// Returns the decompressed length that a body claims: a gzip member at its end (RFC 1952,
    /// section 2.3.1), a zstd frame at its start. The length is not verified, and the body may have
    /// further members or frames. zlib bodies claim no length.
    pub(super) fn claimed_len(self, body: &[u8]) -> Option<usize> {
        let claimed = match self {
            Self::Gzip => u64::from(u32::from_le_bytes(*body.last_chunk()?)),
            Self::Identity | Self::Deflate => return None,
            Self::Zstd => zstd::zstd_safe::get_frame_content_size(body).ok()??,
        };
        usize::try_from(claimed).ok()
    }

    /// Returns the approximate bytes of a decoder, without zstd's window.
    pub(super) fn decoder_size(self) -> usize {
        match self {
            Self::Identity => 0,
            Self::Gzip | Self::Deflate => 48 << 10,
            Self::Zstd => 160 << 10,
        }
    }

    /// Returns the maximum decompressed bytes that the decoder stores in addition to
    /// [`Self::decoder_size`].
    pub(super) fn window(self) -> usize {
        match self {
            Self::Identity | Self::Gzip | Self::Deflate => 0,
            Self::Zstd => 1 << ZSTD_WINDOW_LOG_MAX,
        }
    }
}

pub(super) struct Decoder {
    codec: Codec,
    /// True at the end of a member or frame; a body may end only there.
    at_end: bool,
}

enum Codec {
    Gzip(Decompress),
    Zlib(Decompress),
    Zstd(Zstd<'static>),
}

impl Decoder {
    /// Decompresses a piece of the body and appends it to `output`. Whenever `output` is full,
    /// calls `grow` with the number of unread bytes of the piece.
    pub(super) fn feed(
        &mut self,
        mut input: &[u8],
        output: &mut Vec<u8>,
        mut grow: impl FnMut(&mut Vec<u8>, usize) -> Result<(), RequestError>,
    ) -> Result<(), RequestError> {
        loop {
            if output.len() == output.capacity() {
                grow(output, input.len())?;
            }
            let before = (input.len(), output.len());
            match &mut self.codec {
                Codec::Gzip(gzip) => {
                    // A gzip file is a sequence of members (RFC 1952, section 2.2): each is
                    // followed by another member or by the end.
                    if self.at_end && !input.is_empty() {
                        *gzip = Decompress::new_gzip(15);
                        self.at_end = false;
                    }
                    if !self.at_end {
                        self.at_end = inflate(gzip, &mut input, output)
                            .map_err(|error| malformed("gzip", &error))?;
                    }
                }
                Codec::Zlib(_) if self.at_end => {
                    if !input.is_empty() {
                        return Err(malformed("deflate", &"bytes follow its end"));
                    }
                }
                Codec::Zlib(zlib) => {
                    self.at_end = inflate(zlib, &mut input, output)
                        .map_err(|error| malformed("deflate", &error))?;
                }
                Codec::Zstd(zstd) => {
                    if !(self.at_end && input.is_empty()) {
                        self.at_end = unzstd(zstd, &mut input, output)
                            .map_err(|error| malformed("zstd", &error))?;
                    }
                }
            }
            let all_read = input.is_empty() && (self.at_end || output.len() < output.capacity());
            // A decoder that has input and space, but neither reads nor writes, is stuck.
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

    pub(super) fn finish(self) -> Result<(), RequestError> {
        if self.at_end {
            Ok(())
        } else {
            Err(RequestError::Malformed(
                "the compressed body ends early; it was truncated in transit".to_owned(),
            ))
        }
    }
}

/// Runs one step. Returns `true` at the end of the stream.
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

/// Runs one step. Returns `true` at the end of a frame, if all output was written.
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

fn malformed(encoding: &str, error: &dyn std::fmt::Display) -> RequestError {
    RequestError::Malformed(format!(
        "the {encoding} body cannot be decompressed: {error}"
    ))
}
