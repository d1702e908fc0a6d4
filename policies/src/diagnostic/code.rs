//! The table of codes. A code keeps its number for ever: people search for it.

use std::fmt;

use serde::{Serialize, Serializer};

use super::Severity;

macro_rules! codes {
    ($($name:ident = $id:literal, $severity:ident: $title:literal, $meaning:literal, $fix:literal;)*) => {
        /// Which kind of thing a diagnostic is about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $title] $name,)*
        }

        impl Code {
            /// All of them, by number.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The number, such as `EG0103`.
            #[must_use]
            pub const fn id(self) -> &'static str {
                match self { $(Self::$name => $id),* }
            }

            /// How bad it is, unless the reader was told to be as lenient as an API server.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity),* }
            }

            /// What it says, in a few words.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title),* }
            }

            /// What it means, and what is enforced.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => $meaning),* }
            }

            /// What to do about it.
            #[must_use]
            pub const fn fix(self) -> &'static str {
                match self { $(Self::$name => $fix),* }
            }
        }
    };
}

codes! {
    // Files.
    Syntax = "EG0001", Error: "The text is neither YAML nor JSON",
        "The document cannot be read from the line on; the documents behind it are.",
        "Correct the syntax at the line and column.";
    TooLarge = "EG0002", Error: "The file is too large",
        "A file has a limit in bytes, in values, and in values that aliases repeat, so that no file can stop the reader for long.",
        "Split the file, or write out what the aliases repeat.";
    NotAnObject = "EG0003", Error: "The document is no API object",
        "It has no kind, no apiVersion, or is no mapping.",
        "Write apiVersion, kind and metadata.";
    NameMissing = "EG0004", Error: "The object has no name",
        "Without a name it can be neither shown nor replaced.",
        "Write metadata.name.";
    Metadata = "EG0005", Error: "The metadata cannot be read",
        "Labels decide what policy selects: without them nobody can say what applies.",
        "Labels and annotations are mappings of text to text.";
    DuplicateObject = "EG0006", Error: "The object is there twice",
        "Two objects of one kind and name: only one can be meant.",
        "Remove one, or give it another name.";
    DuplicateField = "EG0007", Warning: "A field is there twice",
        "An API server would take the last one. Inside the spec of a policy the part that has it is enforced closed.",
        "Remove one.";
    UnquotedText = "EG0008", Warning: "Text that YAML reads as something else",
        "Without quotes YAML makes a number or a boolean of it, and an API server refuses the object. It is read as the text that is written.",
        "Put it in quotes: without them y, yes, n, no, on and off are booleans in YAML, like true and false, and 1.0, 1e3 and 0x1f are numbers.";
    ForeignPolicy = "EG0009", Warning: "A policy of another product",
        "It is not evaluated.",
        "Write it as one of the kinds that are.";
    UnknownPolicyKind = "EG0010", Error: "An unknown policy kind",
        "A kind of policy in one of Kubernetes' API groups, or in one whose policies are enforced, that is not known there: nobody can say what it selects.",
        "Correct the apiVersion, use a version of this program that knows the kind, or remove the object.";
    UnknownFieldOutside = "EG0011", Warning: "An unknown field outside spec",
        "It is ignored.",
        "Correct its name or its place, or remove it.";
    TooManyDiagnostics = "EG0012", Warning: "More diagnostics than are listed",
        "What follows is enforced by the same rules, but not listed.",
        "Correct what is listed, and look again.";
    // Policies as a whole.
    UnknownVersion = "EG0102", Error: "An unknown version of a policy kind",
        "It is enforced closed: a NetworkPolicy isolates what it selects in both directions, a ClusterEgressFirewall denies everything external, the other kinds deny everything in the directions that they name (both where they name none), to every pod where the subject cannot be read.",
        "Write the version that is accepted.";
    UnknownField = "EG0103", Error: "An unknown field in the spec of a policy",
        "An API server would drop it, often leaving a rule that allows everything. Here the rule that has it is closed: an allow matches nothing, Deny and Pass become Deny all. A field that belongs to no rule closes all of them, in both directions.",
        "Correct its name or its place, or remove it; --as-stored reads the file as an API server would keep it.";
    WrongType = "EG0104", Error: "A value of the wrong type",
        "The rule that has it is closed.",
        "Write what is accepted.";
    FieldMissing = "EG0105", Error: "A required field is missing",
        "The rule that lacks it is closed.",
        "Write the field.";
    EmptyList = "EG0106", Error: "A list that must not be empty",
        "An empty list never means everything: the rule is closed.",
        "Write at least one item, or leave out the field where that is allowed.";
    UnknownAlternative = "EG0107", Error: "None of the known alternatives",
        "Probably a field of a newer version. As the API prescribes, the rule fails closed: an allow matches nothing, Deny and Pass become Deny all.",
        "Write exactly one of the accepted fields.";
    SeveralAlternatives = "EG0108", Error: "Several alternatives at once",
        "Exactly one may be there: the rule is closed.",
        "Write one item for each.";
    InvalidSelector = "EG0109", Error: "An invalid selector",
        "In a peer the rule is closed. In a subject the requirement counts as met, while the others still limit it, and the policy's allow rules match nothing.",
        "Operators are In and NotIn (with values), Exists and DoesNotExist (without); keys and values are valid labels.";
    InvalidPriority = "EG0110", Error: "An invalid priority",
        "Nobody can say what goes first: Deny rules count with priority 0, allow rules match nothing, Pass becomes Deny all.",
        "Write a whole number from 0 to 1000.";
    InvalidTier = "EG0111", Error: "An invalid tier",
        "Deny rules count in the Admin tier, allow rules match nothing, Pass becomes Deny all.",
        "Write Admin or Baseline.";
    InvalidAction = "EG0112", Error: "An invalid action",
        "The rule becomes Deny all.",
        "Write an action that is accepted: AdminNetworkPolicy has Allow, Deny and Pass; ClusterNetworkPolicy Accept, Deny and Pass; BaselineAdminNetworkPolicy and ClusterEgressFirewall Allow and Deny.";
    BaselineName = "EG0113", Error: "A BaselineAdminNetworkPolicy that is not called default",
        "An API server admits only the one called default: allow rules match nothing, Deny rules count.",
        "Call it default.";
    OverLimit = "EG0114", Warning: "More than the API admits",
        "It is evaluated as written, but an API server would refuse the object.",
        "Split it.";
    HalfSelector = "EG0115", Warning: "One of two selectors is missing",
        "The API asks for both. The missing one is read as {}: everything.",
        "Write {} if everything is meant.";
    InvalidPolicyTypes = "EG0116", Error: "An invalid policyTypes",
        "The policy isolates in both directions.",
        "A list of Ingress, Egress or both.";
    RulesIgnored = "EG0117", Warning: "Rules of a direction that policyTypes does not list",
        "They are ignored, as the API says.",
        "Add the direction to policyTypes, or remove the rules.";
    LegacyAnnotation = "EG0118", Warning: "The namespace annotation of 2016",
        "net.beta.kubernetes.io/network-policy (or spec.networkPolicy) with DefaultDeny (or with anything that cannot be read) isolates the pods of the namespace for ingress.",
        "Write a NetworkPolicy with podSelector {} instead.";
    EqualPriority = "EG0119", Warning: "Two policies of one tier and priority",
        "The API does not say which goes first. Here ClusterNetworkPolicy goes before AdminNetworkPolicy, then the name decides.",
        "Give them different priorities.";
    LegacyForm = "EG0120", Warning: "A NetworkPolicy in the form of 2016",
        "extensions/v1beta1 is read as it was proposed: it speaks of ingress only, a missing list means everything and an empty one nothing. It allows where the annotation net.beta.kubernetes.io/network-policy isolates its namespace; without that it has no effect.",
        "Write a NetworkPolicy of networking.k8s.io/v1, which isolates what it selects.";
    // EG0121 said that services.exposure was not enforced yet.
    InvalidExposure = "EG0122", Error: "An invalid services.exposure",
        "It is read as Reject: clients outside the cluster are refused where a Service leads them to what is denied. The rules count as they are.",
        "Reject or Ignore.";
    DuplicateRuleName = "EG0123", Warning: "Two rules of one name",
        "An API server refuses the object. The rules are enforced as they are.",
        "Give them different names.";
    NodeAddressesUnknown = "EG0124", Warning: "A node whose addresses are not all known",
        "There is no NodeAddressReport of the node: of it only the addresses in its status are known, and on the node itself what it takes for its own.",
        "Run the agent on the node.";
    ApiServerUnknown = "EG0125", Warning: "The API server is not known",
        "There is no Service default/kubernetes with ready endpoints: apiServer stands only for addresses that are declared.",
        "Declare addresses in additionalAddresses or APIServerAddresses.";
    InvalidEnforcement = "EG0126", Error: "An invalid annotation policy.egret.dev/enforcement",
        "The policy, or the policies about the pods of the namespace, are enforced.",
        "Write audit, enforce, or no such annotation.";
    // Ports.
    InvalidPort = "EG0201", Error: "An invalid port",
        "The rule is closed.",
        "A whole number from 1 to 65535.";
    InvalidPortName = "EG0202", Error: "An invalid port name",
        "The rule is closed.",
        "At most 15 lower-case letters, digits and single '-', with at least one letter (IANA service name).";
    InvalidEndPort = "EG0203", Error: "An invalid endPort",
        "The rule is closed.",
        "A whole number not below port, which must be there and be a number.";
    InvalidProtocol = "EG0204", Error: "An unknown protocol",
        "In a NetworkPolicy the rule is closed. In an AdminNetworkPolicy, whose schema admits any text, this port matches nothing.",
        "Write TCP, UDP or SCTP; in the form of 2016 (extensions/v1beta1) TCP or UDP.";
    EmptyRange = "EG0205", Warning: "A range that ends before it starts",
        "It matches nothing.",
        "Write the lower port first.";
    SinglePortRange = "EG0206", Warning: "A range of one port",
        "It is evaluated as that port; an API server refuses it in a ClusterNetworkPolicy.",
        "Write number instead of range.";
    NamedPortWithoutPod = "EG0207", Warning: "A named port where there is no pod",
        "Names of ports are those of a pod's containers: with networks, nodes, domainNames or ipBlock as the destination the port matches nothing.",
        "Write the number of the port.";
    AllPortsOfProtocol = "EG0208", Info: "A protocol without ports",
        "It is read as every port of the protocol; an API server asks for destinationPort.",
        "Write the range 1 to 65535.";
    // Networks.
    InvalidCidr = "EG0301", Error: "An invalid network",
        "The rule is closed.",
        "A network in CIDR notation, such as 10.0.0.0/8 or fd00::/8.";
    LegacyCidr = "EG0302", Warning: "A network in an old notation",
        "Bits behind the prefix are cleared, leading zeros are decimal, IPv4 in IPv6 notation is IPv4.",
        "Write the network as it is read.";
    InvalidExcept = "EG0303", Error: "An exception that is not inside its network",
        "The rule is closed.",
        "Networks of the same family, inside the cidr and smaller.";
    LinkLocalNetwork = "EG0304", Warning: "A link-local network",
        "An address in fe80::/10 means another host on every link; the network is matched as it is.",
        "Use networks that are routed.";
    // Names.
    InvalidDomain = "EG0401", Error: "An invalid domain name",
        "The name matches nothing; the other names of the rule count.",
        "Two labels or more of letters, digits, '-' and '_', optionally behind \"*.\", which stands for one label or several.";
    DomainNamesNeedAllow = "EG0402", Error: "Domain names in a rule that does not allow",
        "Names are learnt from what pods ask, so a Deny could always be walked around: the rule becomes Deny all.",
        "Use domainNames (of apiServer: additionalNames) only with Allow or Accept, and deny everything else behind it.";
    DomainNameIsAddress = "EG0403", Warning: "A domain name that looks like an address",
        "It is a name that nobody asks for: it matches nothing.",
        "Use networks (of apiServer: additionalAddresses) for addresses.";
    DuplicateItem = "EG0404", Warning: "The same item twice",
        "It counts once; an API server refuses the list.",
        "Remove one.";
    // Pods, nodes, services.
    InvalidAddress = "EG0501", Error: "An invalid address",
        "The address is left out.",
        "An IPv4 or IPv6 address.";
    InvalidObjectPort = "EG0502", Error: "A port that cannot be read",
        "The port is left out.",
        "A number from 1 to 65535, and TCP, UDP or SCTP.";
    InvalidObjectField = "EG0503", Error: "A field that cannot be read",
        "The field is read as absent.",
        "Write what is accepted.";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
    }
}

/// The reference of all codes as Markdown: what `docs/diagnostics.md` holds.
#[must_use]
pub fn reference() -> String {
    let mut page = String::from(
        "# Diagnostics\n\n\
         Generated from `policies/src/diagnostic/code.rs`; `EGRET_UPDATE=1 cargo test -p egret-policies --test diagnostics` writes it again.\n\n\
         Each diagnostic names the object, the field, what was found, what would be accepted and what is enforced meanwhile.\n\
         \"Closed\" means: an allow rule matches nothing, a Deny rule and a Pass rule deny everything.\n",
    );
    for code in Code::ALL {
        page.push_str(&format!(
            "\n## {code}: {}\n\n*{}.* {}\n\nWhat to do: {}\n",
            code.title(),
            code.severity(),
            code.meaning(),
            code.fix()
        ));
    }
    page
}
