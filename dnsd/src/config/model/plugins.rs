//! The local plugins of a block: `hosts`, `template`, `rewrite`, `dns64`, `loadbalance`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use egret_shared::net::IpNet;
use serde::{Deserialize, Serialize};

use crate::dns::message::WireName;

use super::{Expression, Zone, go_duration};
use crate::config::model::serde_forms::{class, code, inline, kind, seconds};

/// Whether the next plugin handles a name that is not found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fallthrough {
    /// No.
    No,
    /// Yes.
    All,
    /// In these zones.
    In(Vec<Zone>),
}

/// `hosts [FILE [ZONES…]] { … }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Hosts {
    /// The file.
    pub file: PathBuf,
    /// The zones; empty means the block's.
    pub zones: Vec<Zone>,
    /// Inline lines: an address and its names.
    #[serde(with = "inline")]
    pub inline: Vec<(IpAddr, Vec<WireName>)>,
    /// The TTL of answers.
    #[serde(with = "seconds")]
    pub ttl: Duration,
    /// Whether PTR queries are answered.
    pub reverse: bool,
    /// How often the file is checked; zero means never.
    #[serde(with = "go_duration")]
    pub reload: Duration,
    /// Whether the next plugin handles other names.
    pub fallthrough: Fallthrough,
    /// Whether the next plugin handles other types of names in the file.
    pub fallthrough_unsupported: bool,
}

/// `template CLASS TYPE [ZONES…] { … }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Template {
    /// Its position, for logs.
    #[serde(skip)]
    pub origin: String,
    /// The class; 255 means any.
    #[serde(with = "class", default = "internet")]
    pub class: u16,
    /// The type; 255 means any.
    #[serde(with = "kind", rename = "type")]
    pub kind: u16,
    /// The zones; empty means the block's.
    #[serde(default)]
    pub zones: Vec<Zone>,
    /// Expressions for the name; the first match counts; empty matches any name.
    #[serde(rename = "match", default)]
    pub matches: Vec<Expression>,
    /// Records of the answer section.
    #[serde(default)]
    pub answer: Vec<TemplateText>,
    /// Records of the additional section.
    #[serde(default)]
    pub additional: Vec<TemplateText>,
    /// Records of the authority section.
    #[serde(default)]
    pub authority: Vec<TemplateText>,
    /// The response code.
    #[serde(with = "code", default)]
    pub rcode: u8,
    /// An extended error (RFC 8914) and its text.
    #[serde(default)]
    pub extended_error: Option<(u16, String)>,
    /// Whether the next plugin handles names that no expression matches.
    #[serde(default = "Fallthrough::no")]
    pub fallthrough: Fallthrough,
}

/// A record with placeholders, as written (`{{ .Name }} 60 IN A 192.0.2.1`). The reader checks its syntax.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateText(pub String);

/// `rewrite [continue|stop] …`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Rewrite {
    /// Whether later rules apply too after a match.
    #[serde(default)]
    pub goes_on: bool,
    /// The rule.
    pub rule: RewriteRule,
}

/// What a rule changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum RewriteRule {
    /// The name of the question, and the reverse in the answer.
    Name(NameRewrite),
    /// The type of the question.
    Type {
        /// The original type.
        #[serde(with = "kind")]
        from: u16,
        /// The new type.
        #[serde(with = "kind")]
        to: u16,
    },
    /// The class of the question.
    Class {
        /// The original class.
        #[serde(with = "class")]
        from: u16,
        /// The new class.
        #[serde(with = "class")]
        to: u16,
    },
    /// An EDNS option.
    Edns {
        /// The option.
        field: EdnsField,
        /// The change.
        action: EdnsAction,
        /// Whether the option is reverted in the answer (`revert`).
        #[serde(default)]
        revert: bool,
    },
    /// TTLs of the answer.
    Ttl {
        /// The names.
        of: NameMatch,
        /// The bounds.
        to: TtlRange,
    },
    /// The target of an alias in the answer, which is then queried.
    Cname {
        /// The targets.
        of: NameMatch,
        /// The new target; may use groups of a regular expression (`{1}`).
        to: String,
    },
    /// The response code.
    Rcode {
        /// The names.
        of: NameMatch,
        /// The upstream's code.
        #[serde(with = "code")]
        from: u8,
        /// The new code.
        #[serde(with = "code")]
        to: u8,
    },
}

/// `rewrite name …`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NameRewrite {
    /// The names.
    pub of: NameMatch,
    /// The new name or part of a name; may use groups of a regular expression (`{1}`).
    pub to: String,
    /// Changes of the answer besides the question.
    #[serde(default)]
    pub answers: Vec<AnswerRewrite>,
}

/// How names match: in lower case, with a final dot. Texts of a Corefile get a missing final dot, prefixes and
/// substrings too, as in CoreDNS.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum NameMatch {
    /// Equal.
    Exact(String),
    /// Begins with it.
    Prefix(String),
    /// Ends with it.
    Suffix(String),
    /// Contains it.
    Substring(String),
    /// Matches the expression.
    Regex(Expression),
}

/// `answer …` of a rewritten name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum AnswerRewrite {
    /// Owners and names in the data: the reverse of the question's change.
    Auto,
    /// Owners that match.
    Name(Expression, String),
    /// Names in the data that match.
    Value(Expression, String),
}

/// An EDNS option.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum EdnsField {
    /// A local option: its code, and its value, which may contain variables (`{client_ip}`).
    Local(u16, String),
    /// Name server identifier (RFC 5001).
    Nsid,
    /// Client subnet (RFC 7871): prefix lengths of IPv4 and IPv6.
    Subnet(u8, u8),
}

/// The change of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum EdnsAction {
    /// Sets it.
    Set,
    /// Adds it if it is absent.
    Append,
    /// Replaces it if it is present.
    Replace,
    /// Removes it.
    Unset,
}

/// Bounds of TTLs, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TtlRange {
    /// The lower bound.
    pub at_least: u32,
    /// The upper bound.
    pub at_most: u32,
}

/// `dns64 [PREFIX] { … }` (RFC 6147).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Dns64 {
    /// The prefix; default 64:ff9b::/96. /32, /40, /48, /56, /64 or /96.
    pub prefix: IpNet,
    /// Also names that have IPv6 addresses.
    pub translate_all: bool,
    /// Also clients over IPv4.
    pub allow_ipv4: bool,
}

/// `loadbalance …`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct LoadBalance {
    /// Weights of addresses; `None` means round robin.
    pub weights: Option<WeightFile>,
    /// Networks whose addresses go first, in this order.
    pub prefer: Vec<IpNet>,
}

/// `loadbalance weighted FILE { reload DURATION }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct WeightFile {
    /// The file.
    pub file: PathBuf,
    /// How often the file is checked; zero means never.
    #[serde(with = "go_duration")]
    pub reload: Duration,
}

const fn internet() -> u16 {
    1
}

impl Fallthrough {
    const fn no() -> Self {
        Self::No
    }
}

/// CoreDNS' defaults.
impl Default for Hosts {
    fn default() -> Self {
        Self {
            file: PathBuf::from("/etc/hosts"),
            zones: Vec::new(),
            inline: Vec::new(),
            ttl: Duration::from_secs(3_600),
            reverse: true,
            reload: Duration::from_secs(5),
            fallthrough: Fallthrough::No,
            fallthrough_unsupported: false,
        }
    }
}

impl Dns64 {
    /// The accepted prefixes.
    pub const PREFIXES: &str = "an IPv6 network of 32, 40, 48, 56, 64 or 96 bits, as in \"64:ff9b::/96\"";

    /// RFC 6052 §2.2. CoreDNS accepts 72, 80 and 88 as well, and makes meaningless addresses of them.
    #[must_use]
    pub fn has_usable_prefix(&self) -> bool {
        matches!(self.prefix, IpNet::V6(_)) && matches!(self.prefix.prefix_len(), 32 | 40 | 48 | 56 | 64 | 96)
    }
}

/// The well-known prefix (RFC 6052 §2.1).
impl Default for Dns64 {
    fn default() -> Self {
        Self {
            prefix: "64:ff9b::/96".parse().expect("this is a network"),
            translate_all: false,
            allow_ipv4: false,
        }
    }
}
