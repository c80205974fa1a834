//! Numbers as they are written in decimal digits: compares values exactly, however many
//! digits they have. Knows no format around a number.

use std::fmt;

/// A finite decimal number. Two are equal if they stand for the same value: `1`, `1.0` and `10e-1`.
#[derive(Debug, Clone, Copy)]
pub struct Decimal<'a> {
    negative: bool,
    /// The significant digits, before and after the point: neither a leading nor a trailing zero.
    /// Zero has none.
    whole: &'a str,
    fraction: &'a str,
    /// The power of ten of the first significant digit.
    magnitude: i64,
}

impl<'a> Decimal<'a> {
    /// Reads `-12.5e+3`, and the spellings `+1`, `.5` and `5.` of YAML and Python. `None` for any
    /// other text, and for an exponent that nobody writes.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (digits, exponent) = match text.split_once(['e', 'E']) {
            Some((digits, exponent)) => (digits, i64::from(exponent.parse::<i32>().ok()?)),
            None => (text, 0),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let is_number = |part: &str| part.bytes().all(|digit| digit.is_ascii_digit());
        if whole.len() + fraction.len() == 0 || !is_number(whole) || !is_number(fraction) {
            return None;
        }
        Some(Self::trimmed(negative, whole, fraction, exponent))
    }

    fn trimmed(negative: bool, whole: &'a str, fraction: &'a str, exponent: i64) -> Self {
        let whole = whole.trim_start_matches('0');
        let (fraction, first) = if whole.is_empty() {
            let trimmed = fraction.trim_start_matches('0');
            let n_zeros = fraction.len() - trimmed.len();
            (trimmed, -(n_zeros as i64) - 1)
        } else {
            (fraction, whole.len() as i64 - 1)
        };
        let fraction = fraction.trim_end_matches('0');
        let whole = if fraction.is_empty() {
            whole.trim_end_matches('0')
        } else {
            whole
        };
        let is_zero = whole.is_empty() && fraction.is_empty();
        Self {
            negative: negative && !is_zero,
            whole,
            fraction,
            magnitude: if is_zero { 0 } else { first + exponent },
        }
    }

    fn digits(&self) -> impl Iterator<Item = u8> {
        self.whole.bytes().chain(self.fraction.bytes())
    }
}

impl PartialEq for Decimal<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.negative == other.negative
            && self.magnitude == other.magnitude
            && self.digits().eq(other.digits())
    }
}

/// In JSON's spelling, with one digit before the point.
impl fmt::Display for Decimal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = self.digits().map(char::from);
        let sign = if self.negative { "-" } else { "" };
        write!(f, "{sign}{}", digits.next().unwrap_or('0'))?;
        let rest: String = digits.collect();
        if !rest.is_empty() {
            write!(f, ".{rest}")?;
        }
        if self.magnitude != 0 {
            write!(f, "e{}", self.magnitude)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The digits of a number without an exponent, as a person would align two numbers to compare
    /// them: 200 places before the point and 200 after it.
    fn aligned(text: &str) -> String {
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => ('-', digits),
            None => ('+', text),
        };
        let (digits, exponent) = digits.split_once('e').unwrap_or((digits, "0"));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let mut places = vec!['0'; 400];
        let point = 200 - exponent.parse::<i32>().unwrap();
        for (at, digit) in whole.chars().chain(fraction.chars()).enumerate() {
            places[(point - whole.len() as i32 + at as i32) as usize] = digit;
        }
        let places: String = places.into_iter().collect();
        let is_zero = places.bytes().all(|place| place == b'0');
        format!("{}{places}", if is_zero { '+' } else { sign })
    }

    #[test]
    fn spellings_of_one_value_are_equal() {
        for (a, b) in [
            ("1", "1.0"),
            ("1", "10e-1"),
            ("1e3", "1000"),
            ("1E+3", "1000.000"),
            ("-0", "0.00e5"),
            (".5", "0.5"),
            ("5.", "+5"),
            ("0.00120", "12e-4"),
            ("007", "7"),
            ("12345678901234567890123", "1.2345678901234567890123e22"),
        ] {
            assert_eq!(Decimal::parse(a), Decimal::parse(b), "{a} = {b}");
        }
    }

    #[test]
    fn values_that_differ_in_any_digit_are_not_equal() {
        for (a, b) in [
            ("1", "-1"),
            ("1", "10"),
            ("0", "1e-400"),
            ("12345678901234567890123", "12345678901234567890124"),
            ("0.1", "0.10000000000000000555"),
            ("9007199254740993", "9007199254740992.0"),
        ] {
            assert_ne!(Decimal::parse(a), Decimal::parse(b), "{a} = {b}");
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in [
            "",
            ".",
            "-",
            "e5",
            "1e",
            "1e99999999999",
            "0x1f",
            "1_000",
            "inf",
            "nan",
            "1 ",
        ] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }

    fn written() -> impl Strategy<Value = String> {
        let few_digits = "-?[01]{1,3}(\\.[01]{1,3})?(e-?[0-3])?";
        let many_digits = "-?[0-9]{1,40}(\\.[0-9]{1,40})?(e-?[0-9]{1,2})?";
        prop_oneof![few_digits, many_digits]
    }

    proptest! {
        #[test]
        fn numbers_are_equal_where_their_aligned_digits_are(a in written(), b in written()) {
            let equal = Decimal::parse(&a) == Decimal::parse(&b);
            prop_assert_eq!(equal, aligned(&a) == aligned(&b), "{} = {}", a, b);
        }

        #[test]
        fn a_displayed_number_is_the_same_number_in_json(text in written()) {
            let decimal = Decimal::parse(&text).unwrap();
            let shown = decimal.to_string();
            prop_assert_eq!(Decimal::parse(&shown), Some(decimal), "{}", &shown);
            prop_assert!(serde_json::from_str::<serde_json::Number>(&shown).is_ok(), "{}", &shown);
        }

        #[test]
        fn every_double_equals_itself_in_either_spelling(bits: u64) {
            let float = f64::from_bits(bits);
            prop_assume!(float.is_finite());
            let (plain, scientific) = (format!("{float}"), format!("{float:e}"));
            prop_assert_eq!(Decimal::parse(&plain), Decimal::parse(&scientific));
            let next = format!("{:e}", float.next_up());
            prop_assert_ne!(Decimal::parse(&plain), Decimal::parse(&next));
        }
    }
}
