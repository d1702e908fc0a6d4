//! What a block answers itself, and what it changes: `hosts`, `template`, `rewrite`, `dns64`, `loadbalance`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use egret_shared::net::IpNet;
use serde::{Deserialize, Serialize};

use crate::dns::message::WireName;

use super::{Expression, Zone, go_duration};
use crate::config::model::serde_forms::{class, code, inline, kind, seconds};

/// Whether a name that is not found goes on to what comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fallthrough {
    /// It ends here.
    No,
    /// It goes on.
    All,
    /// It goes on in these zones.
    In(Vec<Zone>),
}

/// `hosts [FILE [ZONES…]] { … }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Hosts {
    /// The file.
    pub file: PathBuf,
    /// The zones; empty means those of the block.
    pub zones: Vec<Zone>,
    /// Lines of the block itself: an address and its names.
    #[serde(with = "inline")]
    pub inline: Vec<(IpAddr, Vec<WireName>)>,
    /// The TTL of what is answered.
    #[serde(with = "seconds")]
    pub ttl: Duration,
    /// Whether addresses are answered with their names.
    pub reverse: bool,
    /// How often the file is looked at; zero never.
    #[serde(with = "go_duration")]
    pub reload: Duration,
    /// What becomes of names that are not in it.
    pub fallthrough: Fallthrough,
    /// Whether names that are in it go on, too, when they are asked for a type that a hosts file cannot say.
    pub fallthrough_unsupported: bool,
}

/// `template CLASS TYPE [ZONES…] { … }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Template {
    /// Where it was written, for logs.
    #[serde(skip)]
    pub origin: String,
    /// The class, 255 for any.
    #[serde(with = "class", default = "internet")]
    pub class: u16,
    /// The type, 255 for any.
    #[serde(with = "kind", rename = "type")]
    pub kind: u16,
    /// The zones; empty means those of the block.
    #[serde(default)]
    pub zones: Vec<Zone>,
    /// Expressions over the question's name, the first that matches counts; empty means any name.
    #[serde(rename = "match", default)]
    pub matches: Vec<Expression>,
    /// Records of the answer.
    #[serde(default)]
    pub answer: Vec<TemplateText>,
    /// Records beside it.
    #[serde(default)]
    pub additional: Vec<TemplateText>,
    /// Records of the authority.
    #[serde(default)]
    pub authority: Vec<TemplateText>,
    /// The code.
    #[serde(with = "code", default)]
    pub rcode: u8,
    /// An extended error (RFC 8914) and its text.
    #[serde(default)]
    pub extended_error: Option<(u16, String)>,
    /// What becomes of a name in the zones that no expression matches.
    #[serde(default = "Fallthrough::no")]
    pub fallthrough: Fallthrough,
}

/// A record with places to fill in, as it was written (`{{ .Name }} 60 IN A 192.0.2.1`). What is accepted of
/// Go's text/template is checked when it is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateText(pub String);

/// `rewrite [continue|stop] …`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Rewrite {
    /// Whether later rules are asked after this one took.
    #[serde(default)]
    pub goes_on: bool,
    /// What it changes.
    pub rule: RewriteRule,
}

/// What a rule changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum RewriteRule {
    /// The name of the question, and in the answer what was changed in the question.
    Name(NameRewrite),
    /// The type of the question.
    Type {
        /// What was asked.
        #[serde(with = "kind")]
        from: u16,
        /// What is asked instead.
        #[serde(with = "kind")]
        to: u16,
    },
    /// The class of the question.
    Class {
        /// What was asked.
        #[serde(with = "class")]
        from: u16,
        /// What is asked instead.
        #[serde(with = "class")]
        to: u16,
    },
    /// An option of EDNS.
    Edns {
        /// Which.
        field: EdnsField,
        /// What is done with it.
        action: EdnsAction,
        /// Whether the upstream's option is taken out of the answer (`revert`).
        #[serde(default)]
        revert: bool,
    },
    /// TTLs of the answer.
    Ttl {
        /// For which names.
        of: NameMatch,
        /// To what.
        to: TtlRange,
    },
    /// The target of an alias in the answer, which is then looked up.
    Cname {
        /// Which targets.
        of: NameMatch,
        /// The other name, which may use groups of a regular expression (`{1}`).
        to: String,
    },
    /// The code of the answer.
    Rcode {
        /// For which names.
        of: NameMatch,
        /// What the upstream said.
        #[serde(with = "code")]
        from: u8,
        /// What is said instead.
        #[serde(with = "code")]
        to: u8,
    },
}

/// `rewrite name …`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NameRewrite {
    /// Which names.
    pub of: NameMatch,
    /// The other name or part of one; may use groups of a regular expression (`{1}`).
    pub to: String,
    /// What of the answer is changed besides the question.
    #[serde(default)]
    pub answers: Vec<AnswerRewrite>,
}

/// How names are matched: in lower case, against a name that ends with a dot. What a Corefile writes without its
/// last dot got one, prefixes and substrings too, as in CoreDNS.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum NameMatch {
    /// This one.
    Exact(String),
    /// Those that begin so.
    Prefix(String),
    /// Those that end so.
    Suffix(String),
    /// Those with this in them.
    Substring(String),
    /// Those that the expression matches.
    Regex(Expression),
}

/// `answer …` of a rewritten name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum AnswerRewrite {
    /// Owners and values, the reverse of what was done to the question.
    Auto,
    /// Owners that the expression matches.
    Name(Expression, String),
    /// Names in values that the expression matches.
    Value(Expression, String),
}

/// Which option of EDNS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum EdnsField {
    /// A local option: its code and its value, which may have variables (`{client_ip}`).
    Local(u16, String),
    /// The server's name (RFC 5001).
    Nsid,
    /// The client's network (RFC 7871): prefix lengths of IPv4 and IPv6.
    Subnet(u8, u8),
}

/// What is done with an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum EdnsAction {
    /// It is there, whatever was.
    Set,
    /// It is there if it was not.
    Append,
    /// It is there if another was.
    Replace,
    /// It is not there.
    Unset,
}

/// Between what TTLs are brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TtlRange {
    /// At least.
    pub at_least: u32,
    /// At most.
    pub at_most: u32,
}

/// `dns64 [PREFIX] { … }` (RFC 6147).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Dns64 {
    /// The prefix; 64:ff9b::/96 where none is said. /32, /40, /48, /56, /64 or /96.
    pub prefix: IpNet,
    /// Also for names that have IPv6 addresses.
    pub translate_all: bool,
    /// Also for clients that asked over IPv4.
    pub allow_ipv4: bool,
}

/// `loadbalance …`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct LoadBalance {
    /// Each answer begins at another address, where no weights are given.
    pub weights: Option<WeightFile>,
    /// Addresses of these networks go first, in this order.
    pub prefer: Vec<IpNet>,
}

/// `loadbalance weighted FILE { reload DURATION }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct WeightFile {
    /// The file.
    pub file: PathBuf,
    /// How often it is looked at; zero never.
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

/// CoreDNS'.
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
    /// What prefixes are accepted.
    pub const PREFIXES: &str = "an IPv6 network of 32, 40, 48, 56, 64 or 96 bits, as in \"64:ff9b::/96\"";

    /// RFC 6052 §2.2; CoreDNS takes 72, 80 and 88, too, and makes addresses of them that say nothing.
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
