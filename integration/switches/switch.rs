//! Mechanisms that a scenario can be run without. The product has no such switch: `patches` puts them into a copy of its source,
//! in which this file is `egret_shared::switch`, together with `is_off.rs`.

macro_rules! switches {
    ($($(#[$meaning:meta])* $switch:ident = $name:literal,)*) => {
        /// A mechanism that a scenario of `integration` is about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Switch {
            $($(#[$meaning])* $switch,)*
        }

        impl Switch {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$switch),*];

            /// The name by which `EGRET_SWITCH_OFF` knows the switch.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$switch => $name,)*
                }
            }
        }
    };
}

switches! {
    /// dnsd holds an interesting answer until it is realized.
    Hold = "hold",
    /// dnsd holds an answer from its cache for a pod that had not been told.
    HoldCached = "hold-cached",
    /// What the kernel refuses is tried again.
    TryAgain = "try-again",
    /// That news were lost is news.
    HearOverrun = "hear-overrun",
    /// What pods are told is opened while rules are being written, too.
    RecordsMeanwhile = "records-meanwhile",
    /// dnsd called as node-cache takes node-cache's flags.
    NodeCache = "node-cache",
    /// Only what a live dnsd answers is kept from translation.
    SignOfLife = "sign-of-life",
    /// … and of a dnsd of several threads only while each of them lives.
    WatchThreads = "watch-threads",
    /// What a thread beside the first was asked it answers before dnsd ends.
    DrainThreads = "drain-threads",
    /// Who takes over does not wait for a thread of its predecessor that hangs.
    LeaveHanging = "leave-hanging",
    /// What was told just before dnsd ends comes to the enforcer all the same.
    TellRest = "tell-rest",
    /// Questions to other resolvers are caught.
    Intercept = "intercept",
    /// Of resolvers that pods choose, only those teach names that the operator trusts.
    TrustChosen = "trust-chosen",
    /// Questions to other resolvers are caught only while dnsd lives.
    CatchAlive = "catch-alive",
    /// A connection to another resolver stays with whom it began.
    StayWithBeginning = "stay-with-beginning",
    /// Pods of some namespaces ask other resolvers themselves.
    SpareNamespaces = "spare-namespaces",
    /// Questions to Services are not caught: kube-proxy translates them.
    SpareServices = "spare-services",
    /// Whom the fallback asks is learned from the enforcer.
    LearnFallback = "learn-fallback",
    /// dnsd's own rules stand behind policy.
    BehindPolicy = "behind-policy",
    /// A dnsd takes over the sockets of the one that answers.
    HandOver = "hand-over",
    /// … and what that one knew.
    HandOverMemory = "hand-over-memory",
    /// dnsd holds the second of two simultaneous answers for one name.
    HoldSecond = "hold-second",
    /// dnsd takes an answer only from the server, port, id and question asked.
    MatchAnswer = "match-answer",
    /// dnsd attributes a query by arrival interface as well as by source address.
    AttributeByInterface = "attribute-by-interface",
    /// dnsd asks again over TCP when an answer is truncated.
    RetryTruncated = "retry-truncated",
    /// A client of dnsd has so many places, connections and questions, and no more.
    FairShares = "fair-shares",
    /// What comes in another's name is not taken from the other's places.
    PayByInterface = "pay-by-interface",
    /// dnsd asks equal questions that are under way at once only once.
    OneFlight = "one-flight",
    /// dnsd denies what is below a name that the upstream denied.
    CutBelow = "cut-below",
    /// dnsd releases a held answer after its deadline.
    StallDeadline = "stall-deadline",
    /// What dnsd told to one pod at an address it did not tell to the next one there.
    ForgetPredecessor = "forget-predecessor",
    /// dnsd sends again all that it told when the enforcer comes back.
    Resync = "resync",
    /// dnsd learns only owners on the chain that starts at the question.
    ChainOnly = "chain-only",
    /// Names are compared without regard to case.
    IgnoreCase = "ignore-case",
    /// Records admit only the pod that asked.
    PerPodRecords = "per-pod-records",
    /// A record ends when its time to live does.
    ExpireRecords = "expire-records",
    /// A newer answer adds to the addresses of a name instead of replacing them.
    AccumulateAddresses = "accumulate-addresses",
    /// The established connection of an expired record goes on.
    KeepEstablished = "keep-established",
    /// It goes on when the rules of its pod are asked again, too.
    KeepLapsed = "keep-lapsed",
    /// It goes on under other rules too, as long as they name what its pod was told.
    KeepLapsedByName = "keep-lapsed-by-name",
    /// The enforcer keeps what the kernel holds when it starts.
    AdoptKernel = "adopt-kernel",
    /// The enforcer's rules and sets stay when it exits.
    KeepOnExit = "keep-on-exit",
    /// A pod's packets are known by its interface, whatever source address they carry.
    DispatchByInterface = "dispatch-by-interface",
    /// A change of policy is asked of open connections as well.
    Generation = "generation",
    /// … of those, too, whose rules stay while members of their sets go.
    AskMembers = "ask-members",
    /// It ends what it forbids though only the other side sends, and the program learns it at once.
    Revoke = "revoke",
    /// A source that is gone at start counts as it was known last.
    KeepObjects = "keep-objects",
    /// A policy file that cannot be read leaves what worked in force.
    KeepLastGood = "keep-last-good",
    /// A rule for names admits the addresses of those names alone.
    MatchNames = "match-names",
    /// A wildcard stands for one or more whole labels.
    WholeLabels = "whole-labels",
    /// dnsd follows the aliases of an answer from the question on.
    FollowChain = "follow-chain",
    /// An address lives as long as the shortest alias on the way to it.
    LowestTtl = "lowest-ttl",
    /// Every answer is recorded, whether or not a policy asks for its name.
    KeepHistory = "keep-history",
    /// A rule's ports limit it.
    MatchPorts = "match-ports",
    /// A rule's peers limit it.
    MatchPeers = "match-peers",
    /// The exceptions of an ipBlock are no part of it.
    HonourExcept = "honour-except",
    /// What no rule of an isolating policy allows is denied.
    Isolate = "isolate",
    /// The tiers of policies are asked in their order.
    TierOrder = "tier-order",
    /// Some addresses are opened by no name.
    Protect = "protect",
    /// No name opens what is a node's, the API server's or a Service's.
    Guard = "guard",
    /// A rule about the pods of the DNS Service is about dnsd in their place.
    StandIn = "stand-in",
    /// A pod that a Service leads back to itself is not isolated from itself.
    Hairpin = "hairpin",
    /// A client outside is refused where a Service leads it to what pods are denied.
    RejectExposure = "reject-exposure",
    /// Replies pass: the first packet of their connection was judged.
    PassReplies = "pass-replies",
    /// Errors about a flow pass, those of the path's MTU among them.
    PassErrors = "pass-errors",
    /// A pod that is not known yet is closed.
    CloseUnknown = "close-unknown",
    /// What is behind another cable than a pod was is another pod, until the source had its time.
    SuspectCables = "suspect-cables",
    /// Neighbour discovery passes, whatever is denied.
    PassNeighbours = "pass-neighbours",
    /// What others do to rules and sets is noticed at once.
    Notice = "notice",
    /// What leads packets past the rules is told.
    NameFastPaths = "name-fast-paths",
    /// All cables into a pod's namespace are the pod's.
    FollowCables = "follow-cables",
    /// Interfaces that lead past the node are guarded inside the pod.
    GuardInside = "guard-inside",
    /// A pod on a bridge is known by its port.
    KnowPorts = "know-ports",
    /// What goes from port to port of a bridge is judged where that is asked for.
    JudgeBridges = "judge-bridges",
    /// The jumps stand in front of what others have.
    JumpInFront = "jump-in-front",
    /// The rules go to the flavour of iptables to which the kubelet goes.
    FollowFlavour = "follow-flavour",
    /// IPv4 is enforced where the programs for IPv6 are not there.
    OneFamilyAlone = "one-family-alone",
    /// Who writes marks of ours is looked for.
    CheckMarks = "check-marks",
    /// What is denied is told.
    TellDenied = "tell-denied",
    /// … not more than so often.
    LimitTelling = "limit-telling",
    /// What policies in audit would deny is told.
    TellAudit = "tell-audit",
    /// A refused sender is told, where that is wanted.
    TellSender = "tell-sender",
    /// The enforcer reports the addresses of its node to other nodes.
    ReportAddresses = "report-addresses",
    /// `enforcer cleanup` removes what is the enforcer's.
    CleanUp = "clean-up",
}
