//! Amounts of CPU time and memory, in the notation of Kubernetes.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A quantity that could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct QuantityError {
    text: String,
    expected: &'static str,
}

impl QuantityError {
    /// Parses a plain number.
    pub(super) fn number(text: &str) -> Result<u64, Self> {
        digits(text).ok_or_else(|| Self {
            text: text.to_owned(),
            expected: "a number such as `10`",
        })
    }
}

const CPU_EXPECTED: &str = "a processor amount such as `100m`, `0.5` or `2`";
const BYTES_EXPECTED: &str = "a size such as `64Mi`, `1Gi`, `500M` or `1048576`";

/// An amount of CPU in thousandths: `100m` is a tenth of a CPU, `1.5` is 1500.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
#[schemars(with = "String")]
pub struct MilliCpu(pub u64);

/// An amount in bytes: `64Mi`, `1G`, `1048576`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
#[schemars(with = "String")]
pub struct Bytes(pub u64);

impl FromStr for MilliCpu {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || QuantityError {
            text: text.to_owned(),
            expected: CPU_EXPECTED,
        };
        if let Some(number) = text.strip_suffix('m') {
            return digits(number).map(Self).ok_or_else(fail);
        }
        scaled(text, 1000).map(Self).ok_or_else(fail)
    }
}

impl FromStr for Bytes {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const UNITS: [(&str, u64); 10] = [
            ("Ki", 1 << 10),
            ("Mi", 1 << 20),
            ("Gi", 1 << 30),
            ("Ti", 1 << 40),
            ("Pi", 1 << 50),
            ("k", 1_000),
            ("M", 1_000_000),
            ("G", 1_000_000_000),
            ("T", 1_000_000_000_000),
            ("P", 1_000_000_000_000_000),
        ];
        let fail = || QuantityError {
            text: text.to_owned(),
            expected: BYTES_EXPECTED,
        };
        for (suffix, factor) in UNITS {
            if let Some(number) = text.strip_suffix(suffix) {
                return scaled(number, factor).map(Self).ok_or_else(fail);
            }
        }
        digits(text).map(Self).ok_or_else(fail)
    }
}

fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// A decimal number times `factor`, rounded up. `None` for more than nine decimals.
fn scaled(text: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole = digits(whole)?.checked_mul(factor)?;
    if fraction.is_empty() {
        return (!text.ends_with('.')).then_some(whole);
    }
    if fraction.len() > 9 {
        return None;
    }
    let exponent = u32::try_from(fraction.len()).ok()?;
    let part = u128::from(digits(fraction)?) * u128::from(factor);
    let part = part.div_ceil(10u128.pow(exponent));
    whole.checked_add(u64::try_from(part).ok()?)
}

impl fmt::Display for MilliCpu {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1000) {
            write!(formatter, "{}", self.0 / 1000)
        } else {
            write!(formatter, "{}m", self.0)
        }
    }
}

impl Bytes {
    /// The amount for display: in the largest unit that fits at least once, with one decimal,
    /// rounded down.
    pub fn rounded(self) -> String {
        for (shift, suffix) in [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")] {
            if let whole @ 1.. = self.0 >> shift {
                let rest = (self.0 - (whole << shift)) >> (shift - 10);
                return format!("{whole}.{}{suffix}", rest * 10 / 1024);
            }
        }
        self.0.to_string()
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, suffix) in [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")] {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(formatter, "{}{suffix}", self.0 >> shift);
            }
        }
        write!(formatter, "{}", self.0)
    }
}

macro_rules! text_serde {
    ($type:ty) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?
                    .parse()
                    .map_err(D::Error::custom)
            }
        }
    };
}

text_serde!(MilliCpu);
text_serde!(Bytes);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        assert_eq!("100m".parse(), Ok(MilliCpu(100)));
        assert_eq!("1.5".parse(), Ok(MilliCpu(1500)));
        assert_eq!("64Mi".parse(), Ok(Bytes(64 << 20)));
        assert_eq!("0.5Gi".parse(), Ok(Bytes(1 << 29)));
        assert_eq!("1048576".parse(), Ok(Bytes(1 << 20)));
    }

    #[test]
    fn refuses_everything_else() {
        for text in [
            "",
            "m",
            "-1",
            "1.",
            ".5m",
            "1e3",
            "99999999999999999999",
            "1 Mi",
            "0x10",
        ] {
            assert!(
                text.parse::<MilliCpu>().is_err(),
                "{text} was read as a processor amount"
            );
            assert!(text.parse::<Bytes>().is_err(), "{text} was read as a size");
        }
    }

    #[test]
    fn prints_what_it_reads() {
        for text in ["100m", "2", "1500m"] {
            assert_eq!(
                text.parse::<MilliCpu>()
                    .map(|value| value.to_string())
                    .as_deref(),
                Ok(text)
            );
        }
        for text in ["64Mi", "1Gi", "1000", "3Ki"] {
            assert_eq!(
                text.parse::<Bytes>()
                    .map(|value| value.to_string())
                    .as_deref(),
                Ok(text)
            );
        }
    }

    #[test]
    fn rounds_for_people() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1536, "1.5Ki"),
            (20 << 20, "20.0Mi"),
            ((2 << 30) - 1, "1.9Gi"),
            (u64::MAX, "16777215.9Ti"),
        ] {
            assert_eq!(Bytes(bytes).rounded(), text);
        }
    }
}
