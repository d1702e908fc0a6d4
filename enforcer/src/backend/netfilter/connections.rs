//! Open connections that a change of rules or members concerns: which are judged again, and which end.

pub(crate) mod flow_dump;
pub(crate) mod affected;
pub(crate) mod inquiry;
pub(crate) mod verdict;
pub(crate) mod revocation;
pub(crate) mod expired_records;
pub(crate) mod pod_sockets;
