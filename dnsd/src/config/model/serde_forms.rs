//! YAML and JSON forms of a plan's values, and their ranges.

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::dns::message::{Codes, WireName};

use super::Fallthrough;

/// An optional number in a range.
pub(super) fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    let size = Option::<u16>::deserialize(deserializer)?;
    match size {
        Some(size) if !(512..=4_096).contains(&size) => Err(D::Error::custom(format!(
            "{size} is not accepted; 512 to 4096 are"
        ))),
        accepted => Ok(accepted),
    }
}

/// 10 to 90.
pub(super) fn percent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    let percent = u8::deserialize(deserializer)?;
    if (10..=90).contains(&percent) {
        return Ok(percent);
    }
    Err(D::Error::custom(format!(
        "{percent} is not accepted; 10 to 90 are"
    )))
}

/// Modules for `#[serde(with)]`: a duration in a range.
macro_rules! spans {
    ($($(#[$about:meta])* $name:ident: $accepts:expr, $range:literal;)*) => {$(
        $(#[$about])*
        pub(super) mod $name {
            use std::time::Duration;

            use serde::de::Error;
            use serde::{Deserializer, Serializer};

            use crate::config::model::go_duration;

            pub(in super::super) fn serialize<S: Serializer>(
                value: &Duration,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                go_duration::serialize(value, serializer)
            }

            pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Duration, D::Error> {
                let value = go_duration::deserialize(deserializer)?;
                let accepts: fn(Duration) -> bool = $accepts;
                if accepts(value) {
                    return Ok(value);
                }
                let written = go_duration::write_duration(value);
                Err(D::Error::custom(format!("{written} is not accepted; {} is", $range)))
            }
        }
    )*};
}

spans! {
    /// Timeouts of connections.
    a_second_to_a_day: |span| (1..=86_400).contains(&span.as_secs()) && span <= Duration::from_secs(86_400), "1s to 24h";
    /// Failures.
    up_to_five_minutes: |span| span <= Duration::from_secs(300), "0s to 5m";
    /// A TTL.
    stale_ttl: |span| span.subsec_nanos() == 0 && span.as_secs() <= u64::from(u32::MAX), "a number of whole seconds";
    /// A TTL.
    ttl: |span| span.subsec_nanos() == 0 && span.as_secs() <= u64::from(u32::MAX), "a number of whole seconds";
    /// A TTL above zero.
    positive_ttl: |span| span.subsec_nanos() == 0 && (1..=u64::from(u32::MAX)).contains(&span.as_secs()), "1s or more, whole seconds,";
    /// A TTL of `hosts`.
    seconds: |span| span.subsec_nanos() == 0 && (1..=65_535).contains(&span.as_secs()), "1s to 65535s, whole seconds,";
}

/// Modules for `#[serde(with)]`: a code by its name, or its number if it has none.
macro_rules! names {
    ($($(#[$about:meta])* $name:ident: $number:ty, $codes:ident;)*) => {$(
        $(#[$about])*
        pub(super) mod $name {
            use serde::{Deserializer, Serializer};

            pub(in super::super) fn serialize<S: Serializer>(
                value: &$number,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&super::name_of(*value, &crate::dns::message::$codes))
            }

            pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
                deserializer: D,
            ) -> Result<$number, D::Error> {
                super::code_of(deserializer, &crate::dns::message::$codes)
            }
        }
    )*};
}

names! {
    /// A class.
    class: u16, CLASSES;
    /// A type.
    kind: u16, TYPES;
    /// A response code.
    code: u8, RCODES;
}

fn name_of<T: Copy + PartialEq + ToString>(number: T, codes: &Codes<T>) -> String {
    codes
        .name(number)
        .map_or_else(|| number.to_string(), ToOwned::to_owned)
}

fn code_of<'de, D: Deserializer<'de>, T: Copy + TryFrom<u64> + std::str::FromStr + 'static>(
    deserializer: D,
    codes: &Codes<T>,
) -> Result<T, D::Error> {
    struct Either;

    impl Visitor<'_> for Either {
        type Value = String;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a name or a number")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<String, E> {
            Ok(number.to_string())
        }
    }

    let text = deserializer.deserialize_any(Either)?;
    codes
        .number(&text)
        .or_else(|| text.parse().ok())
        .ok_or_else(|| D::Error::custom(format!("{text:?} is not accepted; {} is", codes.accepted)))
}

/// Several response codes.
pub(super) mod codes {
    use super::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Code(#[serde(with = "super::code")] u8);

    pub(in super::super) fn serialize<S: Serializer>(value: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(value.iter().map(|code| Code(*code)))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u8>, D::Error> {
        let codes = Vec::<Code>::deserialize(deserializer)?;
        Ok(codes.into_iter().map(|Code(code)| code).collect())
    }
}

/// A name.
pub(super) mod name {
    use super::{Deserialize, Deserializer, Error, Serializer, WireName};

    pub(in super::super) fn serialize<S: Serializer>(
        value: &WireName,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<WireName, D::Error> {
        let text = String::deserialize(deserializer)?;
        WireName::parse(&text)
            .map_err(|error| D::Error::custom(format!("{text:?} is not a domain name: {error}")))
    }
}

/// An address and its names: `{address: 192.0.2.1, names: [a.example]}`.
pub(super) mod inline {
    use std::net::IpAddr;

    use super::{Deserialize, Deserializer, Serialize, Serializer, WireName};

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Line {
        address: IpAddr,
        names: Vec<Name>,
    }

    #[derive(Serialize, Deserialize)]
    struct Name(#[serde(with = "super::name")] WireName);

    pub(in super::super) fn serialize<S: Serializer>(
        value: &[(IpAddr, Vec<WireName>)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(value.iter().map(|(address, names)| Line {
            address: *address,
            names: names.iter().copied().map(Name).collect(),
        }))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(IpAddr, Vec<WireName>)>, D::Error> {
        let lines = Vec::<Line>::deserialize(deserializer)?;
        let names = |line: Line| line.names.into_iter().map(|Name(name)| name).collect();
        Ok(lines
            .into_iter()
            .map(|line| (line.address, names(line)))
            .collect())
    }
}

/// `false`, `true` or a list of zones.
impl Serialize for Fallthrough {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::No => serializer.serialize_bool(false),
            Self::All => serializer.serialize_bool(true),
            Self::In(zones) => zones.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Fallthrough {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Fallthrough;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("true, false or a list of zones")
            }

            fn visit_bool<E: Error>(self, all: bool) -> Result<Fallthrough, E> {
                Ok(if all { Fallthrough::All } else { Fallthrough::No })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Fallthrough, A::Error> {
                let mut zones = Vec::new();
                while let Some(zone) = list.next_element()? {
                    zones.push(zone);
                }
                Ok(Fallthrough::In(zones))
            }
        }

        deserializer.deserialize_any(Either)
    }
}
