//! What the two daemons say to each other.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::name::NamePattern;
use crate::observation::Observation;
use crate::revision::Sequence;

/// The first message of either side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Program and version, for logs.
    pub program: String,
}

/// What dnsd tells the enforcer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToEnforcer {
    /// Who is there.
    Hello(Hello),
    /// From here to `ResyncEnded` come all observations that are still live, with new numbers.
    ResyncStarted,
    /// All live observations were told; the enforcer may answer with what is realized.
    ResyncEnded {
        /// The number of the last one.
        through: Sequence,
    },
    /// A client was or is about to be given this answer.
    Observed {
        /// The number that `Realized` will refer to.
        sequence: Sequence,
        /// The answer.
        observation: Observation,
    },
    /// How many answers it holds now; told about once a second, when it changed.
    Holding {
        /// The number.
        answers: u32,
    },
}

/// What the enforcer tells dnsd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToDnsd {
    /// Who is there.
    Hello(Hello),
    /// Which names are worth waiting for; replaces what was said of this pod before.
    Interest(Interest),
    /// All interests in force have been told since the connection began; a pod that was not named has none.
    InterestComplete,
    /// Whose questions to other resolvers are to be caught; replaces what was said before.
    Pods(NodePods),
    /// Where the cluster's own DNS is; replaces what was said before.
    ClusterDns(ClusterDns),
    /// The kernel holds what observations with these numbers call for.
    Realized {
        /// Every number up to this one, except those that failed, is realized.
        through: Sequence,
        /// Numbers up to `through` that could not be realized: waiting longer will not help.
        failed: Vec<Sequence>,
    },
}

/// The names that a pod's policies mention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interest {
    /// The pod, by one of its addresses.
    pub pod: IpAddr,
    /// The patterns; none when the pod has no interest any more.
    pub patterns: Vec<NamePattern>,
}

/// The pods of the node, by all their addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePods {
    /// Those whose questions to other resolvers are answered by dnsd, where it intercepts.
    pub caught: Vec<IpAddr>,
    /// Those of namespaces that are left alone.
    pub spared: Vec<IpAddr>,
}

/// Where the cluster's own DNS is, as its Services and EndpointSlices say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterDns {
    /// The ready endpoints of the cluster's DNS Service. None says that nobody is known, not that nobody is there.
    pub endpoints: Vec<SocketAddr>,
    /// The addresses of all Services that can be asked at port 53: kube-proxy translates what is sent there.
    pub services: Vec<IpAddr>,
}
