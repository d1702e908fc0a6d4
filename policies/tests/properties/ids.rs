//! What the texts ask for, by the number under which it is known: contradictions between texts (X), the firewall
//! (E), names (F, and G for the text that came later), endPort (K), the form of 2016 (P), and what other
//! implementations got wrong (1 to 61). Every number stands here once.
//!
//! Most are **hit** by a connection that comes out otherwise for a reader who makes the mistake in the row:
//! then the situation was there and decided the verdict. The mistakes are made in `reading`.

use Id::*;

/// A number, its sentence, and what counts as a hit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) id: Id,
    pub(crate) name: &'static str,
    pub(crate) sentence: &'static str,
    pub(crate) how: How,
}

/// What counts as a hit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// The verdict of a reader who makes this mistake is another one.
    Unless(&'static str),
    /// The judge sees it in the batches.
    Seen(&'static str),
    /// The mistake is that of another number.
    As(Id),
    /// No connection of a story can show it: why, and where it is tested if anywhere.
    Elsewhere(&'static str),
}

use How::{As, Elsewhere, Seen, Unless};

impl Id {
    pub(crate) const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The number whose hits count for this one.
    pub(crate) const fn counted_as(self) -> Self {
        match self.row().how {
            As(other) => other,
            Unless(_) | Seen(_) | Elsewhere(_) => self,
        }
    }
}

/// A set of numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ids([u64; 3]);

impl Ids {
    pub(crate) const fn add(&mut self, id: Id) {
        self.0[id as usize / 64] |= 1 << (id as usize % 64);
    }

    pub(crate) const fn has(self, id: Id) -> bool {
        self.0[id as usize / 64] & (1 << (id as usize % 64)) != 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Id> {
        ROWS.iter().map(|row| row.id).filter(move |id| self.has(*id))
    }
}

macro_rules! rows {
    ($($id:ident $name:literal $sentence:literal $how:expr;)*) => {
        /// A number of the texts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Id { $($id),* }

        pub(crate) const ROWS: &[Row] =
            &[$(Row { id: Id::$id, name: $name, sentence: $sentence, how: $how }),*];
    };
}

rows! {
    // Where texts contradict each other, as decided.
    X1 "X-1" "a pod that only a NetworkPolicy isolates reaches its own node, as the setting says; a Deny of another tier wins"
        Unless("the own node is judged as any other peer");
    X2 "X-2" "Baseline is asked for each direction that no NetworkPolicy isolates"
        Unless("isolation in the other direction skips Baseline");
    X3 "X-3" "tcp: {} in a ClusterNetworkPolicy is every port of TCP"
        Unless("it matches nothing");
    X4 "X-4" "a portRange of v1alpha1 that ends before it starts matches nothing, one of one port that port"
        Unless("the ends are exchanged, and a range of one port is empty");
    X5 "X-5" "named ports of a ClusterNetworkPolicy count, whatever channel its schema is of"
        Unless("a destinationNamedPort matches nothing");
    X6 "X-6" "domainNames count in rules that accept, of both tiers; a Deny with them denies everything"
        Unless("they deny what was observed, and do not count in Baseline");
    X7 "X-7" "the own node reaches its pods under the annotation of 2016, whatever process asks"
        Unless("isolation of 2016 stops the own node");
    X8 "X-8" "an object of 2016 does not isolate; one of networking.k8s.io/v1 does without any annotation"
        Unless("an object of 2016 isolates what it selects");
    X9 "X-9" "endPort without port is refused: the rule matches nothing"
        Unless("it is every port of the protocol");
    X10 "X-10" "*. stands for one label or more"
        Unless("it stands for one label");
    X11 "X-11" "what ends by its time to live ends no open connection, a change of policy does"
        Seen("a connection is denied anew because a record is over, and stays allowed where it was open");
    X12 "X-12" "a pod that a Service leads back to itself is judged by cluster-wide policies, not by NetworkPolicy"
        Unless("what meets itself is never judged");
    X13 "X-13" "a hostNetwork pod is exempt from the firewall"
        Unless("it is judged as any other pod");
    // ClusterEgressFirewall.
    E1 "E-1" "of firewalls of one priority a Deny beats an Allow"
        Unless("the first by name decides");
    E2 "E-2" "an Allow of a firewall grants nothing"
        Unless("it is final");
    E3 "E-3" "a firewall judges pods of every namespace, kube-system among them"
        Unless("kube-system is exempt");
    E4 "E-4" "networks and external never match pods and Services, and a node's address inside the pods' network is a node's"
        Unless("networks match pods, external does not match a bridge");
    E5 "E-5" "what the own node takes for its own is a node's, whoever has reported it"
        Unless("only known addresses are a node's");
    E6 "E-6" "clients outside that a Service leads to what is denied are refused, unless exposure is Ignore"
        Unless("they are no concern of the firewall");
    E7 "E-7" "a rule of a firewall without protocols is about every IP protocol"
        Unless("it is about ports only");
    E8 "E-8" "a new Deny ends what is open"
        Seen("a connection that a firewall denies now is asked again");
    E9 "E-9" "what a firewall does not know makes a Deny deny everything external, an Allow nothing"
        Unless("a rule that cannot be read does not count");
    E10 "E-10" "before the first sync the last resolved rules count"
        Elsewhere("about the start of the daemon: its state file has tests of its own");
    E11 "E-11" "a long status is merged and cut"
        Elsewhere("no verdict depends on the status: controller.rs");
    E12 "E-12" "two alternatives in one destination, an empty list, start above end are refused"
        Unless("each alternative counts, what is empty is everything, the ends are exchanged");
    // Names (NPEP-133).
    F1 "F-1" "an exact name is that name and none below it"
        Unless("names below it match");
    F2 "F-2" "a name below another does not match that one"
        Unless("the parent matches");
    F3 "F-3" "a wildcard does not match the name it stands below, nor one that only ends alike"
        Unless("whatever ends alike matches");
    F4 "F-4" "a star is the whole first label or the name is none"
        Unless("a star matches inside labels");
    F5 "F-5" "neither case nor a final dot makes a difference"
        Unless("names are compared as written");
    F6 "F-6" "a Deny with domainNames opens nothing"
        Unless("the rule does not count");
    F7 "F-7" "ingress knows no domainNames: the rule is closed"
        Unless("the rule does not count");
    F8 "F-8" "another host of an allowed address and port is reached"
        Elsewhere("a verdict knows no host name besides the address");
    F9 "F-9" "names and ports of a rule must both match"
        Unless("with names, ports do not count");
    F10 "F-10" "several names are alternatives"
        Unless("only the first name of the first list counts");
    F11 "F-11" "a rule with names does not permit DNS"
        Unless("port 53 is open to whom has such a rule");
    F12 "F-12" "answers are not filtered"
        Elsewhere("about answers: tests of dnsd");
    F13 "F-13" "which server is trusted is said and can be set"
        Elsewhere("a setting of dnsd");
    F14 "F-14" "without an answer nothing is open"
        Unless("a name that nobody asked for is everywhere");
    F15 "F-15" "when the time to live is over, new connections are denied"
        Unless("records never end");
    F16 "F-16" "when the time to live is over, open connections go on"
        Seen("a connection is denied anew because a record is over, and stays allowed where it was open");
    F17 "F-17" "a name has a hundred addresses and more"
        Unless("the first 99 count");
    F18 "F-18" "every name under a wildcard has a hundred addresses"
        Unless("the first 100 of the wildcard count");
    F19 "F-19" "no PTR record is needed"
        Elsewhere("dnsd asks for none, and no observation has one");
    F20 "F-20" "a name of a pod opens the pod"
        Unless("an address of a pod is no name's");
    F21 "F-21" "every address of an answer counts, as of a headless Service"
        Unless("the first does");
    F22 "F-22" "the name of a ClusterIP does not open what is behind it"
        Unless("the name is compared with the address that was dialled");
    F23 "F-23" "an ExternalName is a CNAME"
        As(F25);
    F24 "F-24" "addresses of load balancers are not supported"
        Elsewhere("nothing reads them");
    F25 "F-25" "addresses behind a chain of CNAMEs are the question's"
        Unless("an answer with a chain tells nothing");
    F26 "F-26" "a chain over two answers is not put together"
        Elsewhere("dnsd tells answers one by one: its tests");
    F27 "F-27" "what was asked for counts, not what stands in the chain"
        Unless("every name of the chain was asked for");
    F28 "F-28" "an address that two names have is open by either"
        Unless("all its names must be allowed");
    F29 "F-29" "neither DNSSEC nor DoT is needed"
        Elsewhere("about messages: tests of dnsd");
    F30 "F-30" "nothing is routed otherwise"
        Elsewhere("about packets: scenarios");
    F31 "F-31" "a name that is there twice counts once"
        Unless("the rule is closed");
    F32 "F-32" "domainNames are in AdminNetworkPolicy and both tiers of ClusterNetworkPolicy, not in the Baseline kind"
        Unless("they are in BaselineAdminNetworkPolicy");
    F33 "F-33" "to deny all but names takes 0.0.0.0/0 and ::/0"
        Unless("0.0.0.0/0 is both families");
    G1 "G-1" "a Pass with domainNames denies everything"
        Unless("it passes what was observed");
    G2 "G-2" "asking again extends the life of an address"
        Unless("the first answer counts");
    G3 "G-3" "only the canonical server is believed"
        Elsewhere("about messages: tests of dnsd");
    G4 "G-4" "an address may live longer than its time to live"
        Unless("there is no grace");
    G5 "G-5" "a strong rule for DNS is advised"
        Elsewhere("advice: docs and egret lint");
    G6 "G-6" "pods use the resolver of the cluster"
        Elsewhere("an assumption");
    G7 "G-7" "a policy that comes later knows the answers of before"
        Unless("answers before the policy are not known");
    G8 "G-8" "a policy that is gone allows nothing new"
        Unless("a deleted policy counts");
    // endPort (KEP-2079).
    K1 "K-1" "endPort makes a range"
        Unless("it is ignored");
    K2 "K-2" "endPort asks for port"
        Unless("the range begins with 1");
    K3 "K-3" "a named port has no endPort: the rule matches nothing"
        Unless("endPort is ignored");
    K4 "K-4" "endPort may equal port and not be below it"
        Unless("the ends are exchanged, and one that is equal is refused");
    K5 "K-5" "ports are from 1 to 65535, or the rule matches nothing"
        Unless("a port out of bounds is every port");
    K6 "K-6" "both ends belong to the range"
        Unless("neither does");
    K7 "K-7" "the protocol counts for ranges too, TCP where none is written"
        Unless("a range is of every protocol");
    K8 "K-8" "ranges are for both directions"
        Unless("for egress endPort is ignored");
    K9 "K-9" "ranges and ports are alternatives"
        Unless("only the first counts");
    K10 "K-10" "a range has no exceptions"
        Elsewhere("there is no field for them");
    K11 "K-11" "where ranges are not supported, port counts"
        Elsewhere("they are supported");
    K12 "K-12" "a protocol with endPort alone is not everything"
        As(X9);
    K13 "K-13" "all ports but some are the ranges between them"
        Unless("ranges of one rule are joined");
    K14 "K-14" "a range that is changed counts as it is now"
        Unless("a policy counts as it first was");
    K15 "K-15" "an API server refuses five forms"
        Elsewhere("about API servers; what is enforced for such objects is K-2 to K-5");
    K16 "K-16" "1 to 65535 is every port of the protocol, not every protocol"
        Unless("it is everything");
    // The form of 2016.
    P1 "P-1" "the annotation is JSON, spaces and line breaks are allowed"
        Unless("it is compared as a text");
    P2 "P-2" "an annotation that says nothing of ingress isolates nobody, and objects have no effect"
        Unless("any annotation isolates");
    P3 "P-3" "DefaultDeny denies every source, also of the namespace"
        Unless("pods of the namespace are allowed");
    P4 "P-4" "the form of 2016 is about ingress"
        Unless("DefaultDeny is for egress too");
    P5 "P-5" "replies to allowed connections are allowed"
        Elsewhere("about packets: scenarios");
    P6 "P-6" "a policy that blocks what is open ends it"
        Seen("a connection that isolation of 2016 denies now is asked again");
    P7 "P-7" "the own node is always allowed"
        As(X7);
    P8 "P-8" "policies add up"
        Unless("only the first by name counts");
    P9 "P-9" "podSelector: null is every pod of the namespace"
        Unless("it is none");
    P10 "P-10" "without ingress nothing is allowed"
        Unless("everything is");
    P11 "P-11" "the rule {} is all traffic"
        Unless("it is none");
    P12 "P-12" "ports: [] is no port"
        Unless("it is every port");
    P13 "P-13" "from: [] is nobody"
        Unless("it is everybody");
    P14 "P-14" "a port is TCP unless it says otherwise, and every port where it has no number"
        Unless("it is of every protocol where none is written");
    P15 "P-15" "a peer is one selector; with two it matches nobody"
        Unless("both must hold");
    P16 "P-16" "extensions/v1beta1 has this meaning"
        Unless("such objects are ignored");
    P17 "P-17" "the examples of the text count in an annotated namespace only"
        Unless("they do not count");
    P18 "P-18" "spec.networkPolicy of a namespace is the annotation"
        Unless("it is ignored");
    // What others got wrong.
    C1 "1" "a pod that ended is nobody, and its address may be another's"
        Unless("it keeps its address");
    C2 "2" "a pod that is to end is a pod until it has"
        Unless("it is gone");
    C3 "3" "a new pod is never without its rules"
        Elsewhere("about the start of pods: scenarios");
    C4 "4" "labels count as they are now"
        Unless("they count as they first were");
    C5 "5" "a hostNetwork pod is no peer"
        Unless("it is at its node's address");
    C6 "6" "every address of a pod is the pod's"
        Unless("the first is");
    C7 "7" "an address that is no pod's has no labels"
        Unless("it is a pod without labels");
    C8 "8" "a restart forgets nothing"
        Unless("answers before it are forgotten");
    C9 "9" "for egress a named port is the destination's"
        Unless("it is the source's");
    C10 "10" "a name is another number at another pod"
        Unless("the number of the first pod counts for all");
    C11 "11" "for ingress a named port counts for ipBlock too"
        Unless("it matches nothing there");
    C12 "12" "a named port that nobody serves matches nothing"
        Unless("it is every port");
    C13 "13" "a named port without a destination counts at every pod"
        Unless("it matches nothing");
    C14 "14" "ports of sidecars count, those of other init containers do not"
        Unless("it is the other way round");
    C15 "15" "behind a Service the port of the endpoint counts"
        Unless("the port that was dialled does");
    C16 "16" "a policy for one direction leaves the other open"
        Unless("it isolates both");
    C17 "17" "what the source's egress allows is judged at the destination all the same"
        Unless("it is allowed");
    C18 "18" "a policy for egress leaves Baseline ingress in force"
        As(X2);
    C19 "19" "Pass leaves the tier, and only the tier"
        Unless("the next rule is asked");
    C20 "20" "of equal priorities ClusterNetworkPolicy goes first, then the name decides"
        Unless("it is the other way round");
    C21 "21" "what is not known makes a Deny or Pass deny everything"
        Unless("the rule does not count");
    C22 "22" "the own node reaches pods that cluster-wide policies select"
        Unless("they judge it");
    C23 "23" "the exception of one ipBlock is none of another"
        Unless("an exception is one of the whole rule");
    C24 "24" "an ipBlock matches pods and nodes too"
        Unless("it does not match pods");
    C25 "25" "an exception of another family makes the rule match nothing"
        Unless("it is ignored");
    C26 "26" "old notations of networks count"
        Unless("they are refused");
    C27 "27" "an ipBlock is compared with where the connection ends"
        Unless("it is compared with what was dialled");
    C28 "28" "SCTP is not TCP"
        Unless("it is");
    C29 "29" "ICMP that belongs to a connection passes"
        Elsewhere("about packets: scenarios");
    C30 "30" "an ICMPv6 echo is judged"
        Unless("ICMPv6 is exempt");
    C31 "31" "replies over UDP pass"
        Elsewhere("about packets: scenarios");
    C32 "32" "a protocol without a port is every port of that protocol"
        Unless("it is everything");
    C33 "33" "the own node reaches pods that a NetworkPolicy isolates"
        Unless("isolation stops it");
    C34 "34" "not everything that shows the own node's address is from there"
        Unless("the address is enough");
    C35 "35" "the own node is itself whatever its source address"
        Unless("only the address in its status is");
    C36 "36" "what a node has masqueraded is not from the own node"
        Elsewhere("about packets: scenarios");
    C37 "37" "hairpin"
        As(X12);
    C38 "38" "with IPVS Services are local to nodes and still no node's"
        Unless("what is local is the node's");
    C39 "39" "a rule for the pods of the DNS is one for dnsd in their place, and for no other resolver"
        Unless("dnsd is judged by its address alone; or where it is not, the rule opens port 53 everywhere");
    C40 "40" "every address of the own node is the node's"
        As(E5);
    C41 "41" "UDP answers from another address"
        Elsewhere("about packets");
    C42 "42" "a Service leads to nothing that is denied"
        Unless("the firewall is asked about what was dialled");
    C43 "43" "what is denied now is asked again, and nothing else need be"
        Seen("a connection that is denied now is asked again");
    C44 "44" "replies are no new connections"
        Elsewhere("about packets: scenarios");
    C45 "45" "DNS over TCP"
        Elsewhere("about messages: tests of dnsd");
    C46 "46" "case and final dot"
        As(F5);
    C47 "47" "each address has its own life"
        Unless("the last answer replaces those before");
    C48 "48" "the answer waits for the rules"
        Elsewhere("about time: tests of dnsd and scenarios");
    C49 "49" "open connections outlive records"
        As(F16);
    C50 "50" "many addresses"
        As(F17);
    C51 "51" "programs use answers longer: the least time to live can be set"
        Unless("it does not count");
    C52 "52" "what one pod was told is open for that pod"
        Unless("it is open for all");
    C53 "53" "the name of a ClusterIP"
        As(F22);
    C54 "54" "an IPv6 address may be learnt over IPv4, and the other way round"
        Unless("only addresses of the client's family are");
    C55 "55" "characters that the schema let in make the name match nothing, and only the name"
        Unless("the rule is closed");
    C56 "56" "malformed messages"
        Elsewhere("about messages: fuzzing of dnsd");
    C57 "57" "spoofed answers"
        Elsewhere("about messages: tests of dnsd");
    C58 "58" "large ranges are cheap"
        Elsewhere("about cost: benches");
    C59 "59" "without policyTypes there is ingress, and egress where there are egress rules"
        Unless("there is ingress and always egress");
    C60 "60" "in networking.k8s.io/v1 from: [] is everybody"
        Unless("it is nobody");
    C61 "61" "a namespace that is not known has no labels but its name"
        Unless("every selector matches it");
}

#[test]
fn every_number_stands_there_once() {
    let expected = [
        ("X-", 13),
        ("E-", 12),
        ("F-", 33),
        ("G-", 8),
        ("K-", 16),
        ("P-", 18),
        ("", 61),
    ];
    let expected = expected
        .into_iter()
        .flat_map(|(prefix, last)| (1..=last).map(move |number| format!("{prefix}{number}")));
    assert!(ROWS.iter().map(|row| row.name).eq(expected));
    for row in ROWS {
        assert!(!row.sentence.is_empty());
        if let As(other) = row.how {
            assert!(matches!(other.row().how, Unless(_) | Seen(_)), "{}", row.name);
        }
    }
}
