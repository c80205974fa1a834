//! Compares decimal numbers with any number of digits, and adds numbers of at most 38 digits,
//! exactly.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// A finite decimal number. Numbers are equal if their values are: `1`, `1.0` and `10e-1`.
#[derive(Debug, Clone, Copy)]
pub struct Decimal<'a> {
    negative: bool,
    /// The significant digits before and after the point, without leading or trailing zeros; empty
    /// for zero.
    whole: &'a str,
    fraction: &'a str,
    /// The power of ten of the first significant digit.
    magnitude: i64,
}

impl<'a> Decimal<'a> {
    /// Parses `-12.5e+3`, and the forms `+1`, `.5` and `5.` of YAML and Python. `None` for any
    /// other text, and for an exponent that needs more than 32 bits.
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

    /// Parses a plain amount, such as `-12.50`: digits, optionally followed by a point and further
    /// digits.
    pub fn parse_plain(text: &'a str) -> Option<Self> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let is_plain = digits.starts_with(|c: char| c.is_ascii_digit())
            && digits.ends_with(|c: char| c.is_ascii_digit())
            && digits
                .bytes()
                .all(|byte| byte == b'.' || byte.is_ascii_digit());
        is_plain.then(|| Self::parse(text))?
    }

    /// Returns true if the number is below zero.
    pub fn is_negative(&self) -> bool {
        self.negative
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
        let whole = if fraction.is_empty() { whole.trim_end_matches('0') } else { whole };
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

    fn n_digits(&self) -> usize {
        self.whole.len() + self.fraction.len()
    }

    fn sign(&self) -> i8 {
        match (self.n_digits(), self.negative) {
            (0, _) => 0,
            (_, true) => -1,
            (_, false) => 1,
        }
    }
}

impl PartialEq for Decimal<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Decimal<'_> {}

impl Hash for Decimal<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.sign(), self.magnitude, self.n_digits()).hash(hasher);
        self.digits().for_each(|digit| digit.hash(hasher));
    }
}

impl PartialOrd for Decimal<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_size = || {
            let by_magnitude = self.magnitude.cmp(&other.magnitude);
            by_magnitude.then_with(|| self.digits().cmp(other.digits()))
        };
        (self.sign().cmp(&other.sign()))
            .then_with(|| if self.negative { by_size().reverse() } else { by_size() })
    }
}

/// Formats as in JSON, with one digit before the point.
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

/// Maximum number of digits of a sum, all of which fit into an `i128`.
const MAX_DIGITS: u32 = 38;

/// An exact sum of at most 38 digits: `units` times 10 to the power of −`scale`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sum {
    units: i128,
    scale: u32,
}

impl Sum {
    /// Converts one number; `None` if it has too many digits.
    pub fn of(decimal: &Decimal<'_>) -> Option<Self> {
        // The position of the last digit: 0 for units, 2 for hundreds, -2 for hundredths.
        let last = decimal.magnitude - decimal.n_digits() as i64 + 1;
        let (n_zeros, scale) = match decimal.sign() {
            0 => (0, 0),
            _ => (last.max(0), (-last).max(0)),
        };
        if decimal.n_digits() as i64 + n_zeros > MAX_DIGITS.into() || scale > MAX_DIGITS.into() {
            return None;
        }
        let digits = decimal.digits().map(|digit| i128::from(digit - b'0'));
        let units = digits.fold(0, |units, digit| units * 10 + digit) * 10_i128.pow(n_zeros as u32);
        Some(Self {
            units: if decimal.negative { -units } else { units },
            scale: scale as u32,
        })
    }

    /// Returns true if the sum is above this number.
    pub fn is_above(self, decimal: &Decimal<'_>) -> bool {
        Decimal::parse(&self.to_string()).is_some_and(|sum| sum > *decimal)
    }

    /// Adds another sum. Returns `false`, and adds nothing, if one of the sums has too many digits
    /// at the common scale.
    #[must_use]
    pub fn add(&mut self, other: Self) -> bool {
        if other.units == 0 {
            return true;
        }
        let scale = self.scale.max(other.scale);
        let units = |sum: Self| sum.at_scale(scale);
        let total = units(*self).and_then(|units_of| units_of.checked_add(units(other)?));
        let total = total.filter(|units| is_short(*units));
        if let Some(units) = total {
            *self = Self { units, scale };
        }
        total.is_some()
    }

    fn at_scale(self, scale: u32) -> Option<i128> {
        let n_zeros = scale - self.scale;
        let units = match (self.units, n_zeros) {
            (units, 0) => units,
            (0, _) => 0,
            _ => self.units.checked_mul(10_i128.checked_pow(n_zeros)?)?,
        };
        is_short(units).then_some(units)
    }
}

fn is_short(units: i128) -> bool {
    const LIMIT: u128 = 10_u128.pow(MAX_DIGITS);
    units.unsigned_abs() < LIMIT
}

/// Formats without an exponent: `1250.5`.
impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.units < 0 { "-" } else { "" };
        let scale = self.scale as usize;
        let digits = format!("{:0>1$}", self.units.unsigned_abs(), scale + 1);
        let (whole, fraction) = digits.split_at(digits.len() - scale);
        match fraction.trim_end_matches('0') {
            "" => write!(f, "{sign}{whole}"),
            fraction => write!(f, "{sign}{whole}.{fraction}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the digits of a number without an exponent, aligned for comparison: 200 before the
    /// point and 200 after it.
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

    #[test]
    fn plain_amounts_have_digits_on_both_sides_of_the_point() {
        for text in ["0", "-5", "1000.50", "007", "-0.0"] {
            assert!(Decimal::parse_plain(text).is_some(), "{text}");
        }
        for text in [
            "", "+5", ".5", "5.", "1e3", " 5", "5 ", "1,000", "1.2.3", "--5", "٥", "-",
        ] {
            assert!(Decimal::parse_plain(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_sum_of_more_than_38_digits_is_none() {
        let sum = |texts: &[&str]| {
            texts.iter().try_fold(Sum::default(), |mut sum, text| {
                sum.add(Sum::of(&Decimal::parse(text)?)?).then_some(sum)
            })
        };
        let nines = "9".repeat(38);
        assert_eq!(sum(&[&nines]).unwrap().to_string(), nines);
        assert_eq!(sum(&["1e37", "0"]).unwrap().to_string().len(), 38);
        for too_long in [
            &[nines.as_str(), "1"][..],
            &["1e38"],
            &["1e-39"],
            &["1e-37", "9007199254740993"],
            &["1e2000000000"],
        ] {
            assert!(sum(too_long).is_none(), "{too_long:?}");
        }
        assert_eq!(sum(&["0.10", "-0.1", "1e1"]).unwrap().to_string(), "10");
        assert_eq!(sum(&["-0.05", "-1"]).unwrap().to_string(), "-1.05");
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
        fn numbers_are_ordered_as_their_aligned_digits(a in written(), b in written()) {
            let signed = |text: &str| {
                let aligned = aligned(text);
                (aligned.starts_with('+'), aligned[1..].to_owned())
            };
            let ((a_positive, a_digits), (b_positive, b_digits)) = (signed(&a), signed(&b));
            let expected = a_positive.cmp(&b_positive).then_with(|| if a_positive {
                a_digits.cmp(&b_digits)
            } else {
                b_digits.cmp(&a_digits)
            });
            let order = Decimal::parse(&a).cmp(&Decimal::parse(&b));
            prop_assert_eq!(order, expected, "{} and {}", a, b);
        }

        #[test]
        fn sums_are_those_of_long_addition(
            addends in prop::collection::vec("-?[0-9]{1,12}(\\.[0-9]{1,8})?", 1..20),
        ) {
            // Returns the number in units of 10^-8.
            let units = |text: &str| {
                let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
                let digits: i128 = format!("{whole}{fraction:0<8}").parse().unwrap();
                digits
            };
            let expected: i128 = addends.iter().map(|text| units(text)).sum();
            let sum = addends.iter().try_fold(Sum::default(), |mut sum, text| {
                sum.add(Sum::of(&Decimal::parse_plain(text)?)?).then_some(sum)
            });
            let shown = sum.unwrap().to_string();
            prop_assert_eq!(units(&shown), expected, "{}", shown);
        }

        #[test]
        fn a_sum_is_compared_as_its_number_is(a in written(), b in written()) {
            let (a, b) = (Decimal::parse(&a).unwrap(), Decimal::parse(&b).unwrap());
            if let Some(sum) = Sum::of(&a) {
                prop_assert_eq!(sum.is_above(&b), a > b, "{} and {}", a, b);
            }
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
