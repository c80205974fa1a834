//! Conversion of times to and from RFC 3339.

use prost_types::Timestamp;

/// Formats a time in UTC: `2026-11-21T20:12:37Z`, with a fraction if the time has one.
pub(crate) fn rfc3339(unix_nanos: u64) -> String {
    let seconds = i64::try_from(unix_nanos / 1_000_000_000).unwrap_or(i64::MAX);
    let nanos = (unix_nanos % 1_000_000_000) as i32;
    Timestamp { seconds, nanos }.to_string()
}

/// Parses RFC 3339 as Unix nanoseconds; `None` if the text is invalid. A time before 1970 becomes
/// 0; a time after 2554 becomes `u64::MAX`.
pub(crate) fn unix_nanos_from_rfc3339(text: &str) -> Option<u64> {
    let Timestamp { seconds, nanos } = text.parse().ok()?;
    let nanos = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    Some(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of `cases` come from `date -u -d @SECONDS +%FT%TZ`.
    #[test]
    fn times_are_those_of_an_independent_calendar() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_795_292_000, "2026-11-21T20:13:20Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_704_067_199, "2023-12-31T23:59:59Z"),
        ];
        for (secs, text) in cases {
            let unix_nanos = secs * 1_000_000_000;
            assert_eq!(rfc3339(unix_nanos), text);
            assert_eq!(unix_nanos_from_rfc3339(text), Some(unix_nanos));
        }
        assert_eq!(rfc3339(1_500_000_000), "1970-01-01T00:00:01.500Z");
        assert_eq!(unix_nanos_from_rfc3339("1969-12-31T23:59:59Z"), Some(0));
        assert_eq!(unix_nanos_from_rfc3339("1969-12-31T23:59:59.500Z"), Some(0));
        assert_eq!(
            unix_nanos_from_rfc3339("9999-12-31T23:59:59Z"),
            Some(u64::MAX)
        );
        assert_eq!(unix_nanos_from_rfc3339("yesterday"), None);
    }
}
