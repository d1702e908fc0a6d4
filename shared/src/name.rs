//! Domain names and the patterns that policies write for them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};

/// The most octets that a name takes on the wire, its root label included (RFC 1035 §3.1).
pub const MAX_WIRE: usize = 255;
/// The most octets in a label (RFC 1035 §3.1).
const MAX_LABEL: usize = 63;

/// An absolute domain name in lower case (RFC 4343), written without its final dot; the root is `.`.
///
/// Octets outside `!`..`~`, and the dot and backslash inside a label, are written `\DDD` (RFC 1035 §5.1),
/// so that two names are equal exactly when their texts are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct DnsName(Box<str>);

/// Why a text or a sequence of labels is no domain name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// Nothing was written.
    #[error("the name is empty; write the root as \".\"")]
    Empty,
    /// Two dots in a row, or a dot at the start.
    #[error("{0:?} has an empty label")]
    EmptyLabel(String),
    /// RFC 1035 §3.1.
    #[error("a label of {0:?} is longer than 63 octets")]
    LabelTooLong(String),
    /// RFC 1035 §3.1.
    #[error("{0:?} is longer than 255 octets on the wire")]
    TooLong(String),
    /// A backslash that is not followed by three digits up to 255 or one other character.
    #[error("{0:?} has a backslash that escapes nothing")]
    BadEscape(String),
}

impl DnsName {
    /// The root.
    #[must_use]
    pub fn root() -> Self {
        Self(".".into())
    }

    /// Makes a name of the labels of a message, without the root label.
    ///
    /// # Errors
    /// A label that is empty or over 63 octets, or a name over 255 octets.
    pub fn from_labels<'a>(labels: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, InvalidName> {
        let mut text = String::with_capacity(64);
        let mut wire = 1;
        for label in labels {
            if !text.is_empty() {
                text.push('.');
            }
            push_label(&mut text, label);
            wire += 1 + label.len();
            match label.len() {
                0 => return Err(InvalidName::EmptyLabel(text)),
                1..=MAX_LABEL => {}
                _ => return Err(InvalidName::LabelTooLong(text)),
            }
        }
        if wire > MAX_WIRE {
            return Err(InvalidName::TooLong(text));
        }
        Ok(if text.is_empty() {
            Self::root()
        } else {
            Self(text.into())
        })
    }

    /// Makes a name of its octets in a message without compression, the root label included.
    ///
    /// # Errors
    /// As of its labels.
    pub fn from_wire(octets: &[u8]) -> Result<Self, InvalidName> {
        match plain_text(octets, &mut [0; MAX_WIRE]) {
            Some(text) => Ok(Self(text.into())),
            None => Self::from_labels(labels(octets)),
        }
    }

    /// The text, lower case, without the final dot.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this name is one or more whole labels below `zone`.
    #[must_use]
    pub fn is_below(&self, zone: &Self) -> bool {
        if zone.0.as_ref() == "." {
            return self != zone;
        }
        self.0
            .strip_suffix(zone.as_str())
            .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
    }
}

/// The labels of a name in a message; one that is cut has none of its octets.
fn labels(mut octets: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, behind) = octets.split_first().filter(|(length, _)| **length > 0)?;
        let label = behind.split_at_checked(usize::from(*length));
        let (label, behind) = label.unwrap_or_default();
        octets = behind;
        Some(label)
    })
}

/// The text of a name in a message of which no octet has to be escaped, as nearly all are: its octets, with dots where the
/// lengths of labels stand. Nothing where one has to be, and for the root.
pub fn plain_text<'a>(octets: &[u8], room: &'a mut [u8; MAX_WIRE]) -> Option<&'a str> {
    let (first, behind) = octets.split_first().filter(|_| octets.len() <= MAX_WIRE)?;
    let (_, labels) = behind.split_last().filter(|(root, _)| **root == 0)?;
    let text = &mut room[..labels.len()];
    text.copy_from_slice(labels);
    let (mut at, mut lengths) = (usize::from(*first), 0);
    while let Some(length @ 1..=63) = text.get(at).copied() {
        text[at] = b'.';
        (at, lengths) = (at + 1 + usize::from(length), lengths + 1);
    }
    let is_whole = at == text.len() && (1..=63).contains(first);
    let dots = text.iter().filter(|octet| **octet == b'.').count();
    let has_others = text.iter().fold(false, |found, octet| {
        found | !matches!(octet, b'!'..=b'~') | (*octet == b'\\')
    });
    if !is_whole || dots != lengths || has_others {
        return None;
    }
    text.make_ascii_lowercase();
    str::from_utf8(text).ok()
}

fn push_label(text: &mut String, label: &[u8]) {
    for octet in label {
        let octet = octet.to_ascii_lowercase();
        match octet {
            b'.' => text.push_str("\\046"),
            b'\\' => text.push_str("\\092"),
            plain @ b'!'..=b'~' => text.push(char::from(plain)),
            other => text.push_str(&format!("\\{other:03}")),
        }
    }
}

impl FromStr for DnsName {
    type Err = InvalidName;

    /// Reads a name as people write it: any case, the final dot optional, `\DDD` and `\X` escapes.
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        if text == "." {
            return Ok(Self::root());
        }
        let labels = split_labels(text)?;
        Self::from_labels(labels.iter().map(Vec::as_slice))
    }
}

fn split_labels(text: &str) -> Result<Vec<Vec<u8>>, InvalidName> {
    if text.is_empty() {
        return Err(InvalidName::Empty);
    }
    let mut labels = vec![Vec::new()];
    let mut octets = text.bytes().peekable();
    while let Some(octet) = octets.next() {
        match octet {
            b'.' if octets.peek().is_none() => break,
            b'.' => labels.push(Vec::new()),
            b'\\' => push_octet(
                &mut labels,
                unescape(&mut octets).ok_or_else(|| InvalidName::BadEscape(text.to_owned()))?,
            ),
            plain => push_octet(&mut labels, plain),
        }
    }
    if labels.iter().any(Vec::is_empty) {
        Err(InvalidName::EmptyLabel(text.to_owned()))
    } else {
        Ok(labels)
    }
}

fn push_octet(labels: &mut [Vec<u8>], octet: u8) {
    labels
        .last_mut()
        .expect("there is always a label being read")
        .push(octet);
}

fn unescape(octets: &mut impl Iterator<Item = u8>) -> Option<u8> {
    let first = octets.next()?;
    if !first.is_ascii_digit() {
        return Some(first);
    }
    let mut value = u32::from(first - b'0');
    for _ in 0..2 {
        let digit = octets.next().filter(u8::is_ascii_digit)?;
        value = value * 10 + u32::from(digit - b'0');
    }
    u8::try_from(value).ok()
}

impl fmt::Display for DnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// As its text, which is not copied for that: each answer is told.
impl Serialize for DnsName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl TryFrom<String> for DnsName {
    type Error = InvalidName;

    /// What is told of an answer has its names as they are kept: such a text is the name.
    fn try_from(text: String) -> Result<Self, InvalidName> {
        if is_as_kept(&text) {
            return Ok(Self(text.into_boxed_str()));
        }
        text.parse()
    }
}

/// Whether a text is that of a name, letter by letter; one that is not may be read as one nevertheless.
fn is_as_kept(text: &str) -> bool {
    let is_label = |label: &str| (1..=MAX_LABEL).contains(&label.len()) && label.bytes().all(is_plain);
    // A length takes the place of each dot, and of the beginning; behind the last label there is the root's.
    text.len() + 2 <= MAX_WIRE && text.split('.').all(is_label)
}

const fn is_plain(octet: u8) -> bool {
    matches!(octet, b'!'..=b'~') && octet != b'\\' && !octet.is_ascii_uppercase()
}

impl From<DnsName> for String {
    fn from(name: DnsName) -> Self {
        name.0.into()
    }
}

/// What a policy writes in `domainNames`: a name, or `*.` and a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum NamePattern {
    /// This name and no other.
    Exact(DnsName),
    /// Every name that is one or more whole labels below this one, not the name itself (NPEP-133).
    Below(DnsName),
}

/// Why a text is no name pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    /// What stands for a name is none.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The API admits a star only as the whole first label.
    #[error("{0:?}: a star may only be the whole first label, as in \"*.example.com\"")]
    Star(String),
    /// The API asks for two labels or more behind an optional `*.`.
    #[error("{0:?} has fewer than two labels (besides \"*.\")")]
    TooFewLabels(String),
    /// The API admits letters, digits, `-` and `_`, the last two only inside a label.
    #[error(
        "{0:?}: a label may hold letters, digits, '-' and '_', and must start and end with a letter or digit"
    )]
    Character(String),
}

impl NamePattern {
    /// Whether the pattern admits the name.
    #[must_use]
    pub fn matches(&self, name: &DnsName) -> bool {
        match self {
            Self::Exact(exact) => exact == name,
            Self::Below(zone) => name.is_below(zone),
        }
    }
}

impl FromStr for NamePattern {
    type Err = InvalidPattern;

    /// Reads what `domainNames` may hold: the API's regular expression (with `A-Z`, not `A-z`), any case,
    /// the final dot optional.
    fn from_str(text: &str) -> Result<Self, InvalidPattern> {
        let (below, rest) = text.strip_prefix("*.").map_or((false, text), |rest| (true, rest));
        if rest.contains('*') {
            return Err(InvalidPattern::Star(text.to_owned()));
        }
        let labels: Vec<&str> = rest.strip_suffix('.').unwrap_or(rest).split('.').collect();
        if labels.len() < 2 {
            return Err(InvalidPattern::TooFewLabels(text.to_owned()));
        }
        if !labels.iter().all(|label| is_policy_label(label)) {
            return Err(InvalidPattern::Character(text.to_owned()));
        }
        let name: DnsName = rest.parse()?;
        Ok(if below {
            Self::Below(name)
        } else {
            Self::Exact(name)
        })
    }
}

fn is_policy_label(label: &str) -> bool {
    let alphanumeric = |octet: Option<u8>| octet.is_some_and(|octet| octet.is_ascii_alphanumeric());
    alphanumeric(label.bytes().next())
        && alphanumeric(label.bytes().last())
        && label
            .bytes()
            .all(|octet| octet.is_ascii_alphanumeric() || octet == b'-' || octet == b'_')
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => name.fmt(f),
            Self::Below(zone) => write!(f, "*.{zone}"),
        }
    }
}

impl TryFrom<String> for NamePattern {
    type Error = InvalidPattern;

    fn try_from(text: String) -> Result<Self, InvalidPattern> {
        text.parse()
    }
}

impl From<NamePattern> for String {
    fn from(pattern: NamePattern) -> Self {
        pattern.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DnsName {
        text.parse().unwrap()
    }

    #[test]
    fn case_and_final_dot_make_no_difference() {
        assert_eq!(name("API.Example.TEST."), name("api.example.test"));
    }

    #[test]
    fn a_text_reads_back_as_the_same_name() {
        for labels in [
            vec![b"a.b".as_slice(), b"test"],
            vec![b"\\".as_slice(), b"x y"],
            vec![&[0u8, 255][..], b"test"],
            vec![],
        ] {
            let made = DnsName::from_labels(labels.iter().copied()).unwrap();
            assert_eq!(name(made.as_str()), made);
        }
    }

    #[test]
    fn a_name_of_a_message_is_the_one_of_its_labels() {
        let (long, full) = ([b'a'; 46], [b'b'; 63]);
        for labels in [
            vec![b"API".as_slice(), b"Example", b"TEST"],
            vec![&long, b"x"],
            vec![b"x", &long, &full],
            vec![b"a.b", b"test"],
            vec![b"...", b"test"],
            vec![b"\\", b"x y"],
            vec![&[0, 255], b"~!", b"\x7f"],
            vec![b"\x03abc"],
            vec![],
            vec![&full, &full, &full, &full[..61]],
            vec![&full, &full, &full, &full[..62]],
        ] {
            let in_message = |label: &&[u8]| [&[u8::try_from(label.len()).unwrap()], *label].concat();
            let mut octets: Vec<u8> = labels.iter().flat_map(in_message).collect();
            octets.push(0);
            let made = DnsName::from_wire(&octets);
            assert_eq!(made, DnsName::from_labels(labels.iter().copied()), "{labels:?}");
        }
        for cut in [b"\x03ab".as_slice(), b"\x03abc\x05d\0", b"\x03abc\x40d\0"] {
            assert!(DnsName::from_wire(cut).is_err(), "{cut:?}");
        }
    }

    #[test]
    fn a_text_that_is_taken_as_it_is_is_the_name_that_is_read_from_it() {
        let label = |length| "a".repeat(length);
        let long = [label(63), label(63), label(63)].join(".");
        let texts = [
            ".",
            "a",
            "a.b-c._d",
            "a.",
            "A.b",
            "a..b",
            ".a",
            "",
            "a b",
            "a\\046b.c",
            "\u{e9}.c",
            "~.!",
        ];
        let built = [63, 64].map(label).into_iter();
        let built = built.chain([61, 62].map(|length| format!("{long}.{}", label(length))));
        for text in texts.into_iter().map(str::to_owned).chain(built) {
            let read = text.parse::<DnsName>();
            assert_eq!(DnsName::try_from(text.clone()), read, "{text:?}");
            let is_itself = read.is_ok_and(|name| name.as_str() == text && name != DnsName::root());
            assert_eq!(is_as_kept(&text), is_itself && !text.contains('\\'), "{text:?}");
        }
    }

    #[test]
    fn a_dot_inside_a_label_is_no_label_boundary() {
        let tricky = DnsName::from_labels([b"evil.example".as_slice(), b"test"]).unwrap();
        assert!(!tricky.is_below(&name("example.test")));
        assert!(tricky.is_below(&name("test")));
    }

    #[test]
    fn names_that_are_none() {
        let long_label = "a".repeat(64);
        let long_name = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(62)].join(".");
        for text in [
            "",
            "..",
            ".a",
            "a..b",
            "a\\",
            "a\\25",
            "a\\256.b",
            &long_label,
            &long_name,
        ] {
            assert!(text.parse::<DnsName>().is_err(), "{text:?}");
        }
        assert!(long_name[..long_name.len() - 1].parse::<DnsName>().is_ok());
    }

    #[test]
    fn a_wildcard_is_one_or_more_whole_labels() {
        let below: NamePattern = "*.Kubernetes.io.".parse().unwrap();
        for (text, matched) in [
            ("www.kubernetes.io", true),
            ("latest.blog.KUBERNETES.io", true),
            ("kubernetes.io", false),
            ("my-kubernetes.io", false),
            ("wikipedia.org", false),
            ("io", false),
        ] {
            assert_eq!(below.matches(&name(text)), matched, "{text}");
        }
    }

    #[test]
    fn patterns_that_the_api_refuses() {
        for text in [
            "",
            "*",
            "*.com",
            "localhost",
            "a*.x.io",
            "a.*.io",
            "*x.io",
            "**.x.io",
            "_dmarc.x.io",
            "x-.io",
            "[x.io",
            "x..io",
            ".x.io",
        ] {
            assert!(text.parse::<NamePattern>().is_err(), "{text:?}");
        }
        for text in ["x.io", "*.x.io", "1.2.3.4", "a_b.x.io", "X.IO."] {
            assert!(text.parse::<NamePattern>().is_ok(), "{text:?}");
        }
    }
}
