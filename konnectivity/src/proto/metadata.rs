//! Paths and headers of the two gRPC services. The services have no package.

/// The API server's calls.
pub const PROXY: &str = "/ProxyService/Proxy";
/// The agents' calls.
pub const CONNECT: &str = "/AgentService/Connect";

/// Of an agent, exactly once.
pub const AGENT_ID: &str = "agentid";
/// Of an agent, at most once: [`super::Identifiers`].
pub const AGENT_IDENTIFIERS: &str = "agentidentifiers";
/// Of the server, exactly once, before any message.
pub const SERVER_ID: &str = "serverid";
/// Of the server, exactly once: how many servers there are, in decimal.
pub const SERVER_COUNT: &str = "servercount";
/// Of either end, at most once: octets of each connection that it takes before it gives credit ([`super::Packet::Credit`]), in decimal. Credits
/// are used where both ends send it. Others ignore it.
pub const WINDOW: &str = "egret-window";
