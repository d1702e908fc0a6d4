//! The network configuration on the standard input, and the result of the plugins before that is in it (CNI specification,
//! sections 1 and 5).

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use egret_shared::cni::DEFAULT_SOCKET;
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use crate::error::{CniError, Code};

/// The versions of the specification whose configurations and results are understood.
pub(crate) const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// How long the enforcer is waited for by default, in seconds: longer than a restart of the enforcer takes, far below the
/// kubelet's limit of two minutes (`runtimeRequestTimeout`).
pub(crate) const DEFAULT_WAIT: u64 = 5;

/// The configuration of this plugin.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NetworkConfig {
    cni_version: String,
    /// The network's name.
    pub(crate) name: String,
    #[serde(default = "default_socket")]
    pub(crate) socket: PathBuf,
    #[serde(default = "default_wait")]
    wait_seconds: u64,
    #[serde(default)]
    pub(crate) on_unknown_pod: OnUnknownPod,
    #[serde(default)]
    pub(crate) prev_result: Option<Value>,
    /// The attachments that exist, for GC.
    #[serde(default, rename = "cni.dev/valid-attachments")]
    pub(crate) valid_attachments: Option<Vec<Attachment>>,
}

/// What happens to a pod whose rules are not in the kernel after the wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnUnknownPod {
    /// The ADD fails, and the kubelet tries again.
    #[default]
    Fail,
    /// The pod starts as an unknown one.
    Start,
}

/// An attachment that exists.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Attachment {
    #[serde(rename = "containerID")]
    pub(crate) container: String,
    #[serde(rename = "ifname")]
    pub(crate) interface: String,
}

fn default_socket() -> PathBuf {
    DEFAULT_SOCKET.into()
}

const fn default_wait() -> u64 {
    DEFAULT_WAIT
}

/// The version of a configuration that may be invalid otherwise, for the error.
pub(crate) fn version_of(config: &[u8]) -> String {
    let value: Value = serde_json::from_slice(config).unwrap_or_default();
    let version = value.get("cniVersion").and_then(Value::as_str);
    version.unwrap_or("1.0.0").to_owned()
}

impl NetworkConfig {
    pub(crate) fn parse(config: &[u8]) -> Result<Self, CniError> {
        let undecodable = |error| {
            CniError::new(
                Code::Undecodable,
                format_args!("the network configuration: {error}"),
            )
        };
        let config: Self = serde_json::from_slice(config).map_err(undecodable)?;
        if !VERSIONS.contains(&config.cni_version.as_str()) {
            let reason = format!(
                "cniVersion is {:?}; accepted are {VERSIONS:?}",
                config.cni_version
            );
            return Err(CniError::new(Code::IncompatibleVersion, reason));
        }
        if !(1..=100).contains(&config.wait_seconds) {
            let reason = format!("waitSeconds is {}; accepted is 1 to 100", config.wait_seconds);
            return Err(CniError::new(Code::InvalidConfig, reason));
        }
        Ok(config)
    }

    pub(crate) const fn wait(&self) -> Duration {
        Duration::from_secs(self.wait_seconds)
    }

    /// The result of the plugins before. This plugin makes no network of its own.
    pub(crate) fn result(&self) -> Result<&Value, CniError> {
        let missing = "there is no prevResult: the plugin belongs behind another one in a list of plugins";
        self.prev_result
            .as_ref()
            .ok_or_else(|| CniError::new(Code::InvalidConfig, missing))
    }

    /// The addresses of the pod's interface: those that the result has for it, or for no interface.
    pub(crate) fn addresses(&self, interface: &str) -> Result<Vec<IpAddr>, CniError> {
        let result = self.result()?;
        let undecodable = |error| CniError::new(Code::Undecodable, format_args!("prevResult: {error}"));
        let result = PreviousResult::deserialize(result).map_err(undecodable)?;
        let is_pods = |address: &&Address| match address.interface {
            None => true,
            Some(number) => result.interfaces.get(number).is_some_and(|found| {
                found.name == interface && found.sandbox.as_ref().is_some_and(|sandbox| !sandbox.is_empty())
            }),
        };
        let addresses: Vec<IpAddr> = result
            .ips
            .iter()
            .filter(is_pods)
            .map(|ip| ip.address.addr())
            .collect();
        if addresses.is_empty() {
            let reason = format!("prevResult names no address of {interface}");
            return Err(CniError::new(Code::InvalidConfig, reason));
        }
        Ok(addresses)
    }
}

#[derive(Debug, Deserialize)]
struct PreviousResult {
    #[serde(default)]
    interfaces: Vec<ResultInterface>,
    #[serde(default)]
    ips: Vec<Address>,
}

#[derive(Debug, Deserialize)]
struct ResultInterface {
    name: String,
    #[serde(default)]
    sandbox: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Address {
    address: IpNet,
    #[serde(default)]
    interface: Option<usize>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

    use super::*;

    fn config(more: &str) -> Result<NetworkConfig, CniError> {
        let text = format!(r#"{{"cniVersion": "1.0.0", "name": "pods", "type": "egret-cni"{more}}}"#);
        NetworkConfig::parse(text.as_bytes())
    }

    #[test]
    fn a_pod_that_is_not_ready_does_not_start_by_default() {
        let default = config("").unwrap();
        assert_eq!(default.on_unknown_pod, OnUnknownPod::Fail);
        assert_eq!(
            (default.wait(), default.socket.as_path()),
            (Duration::from_secs(5), DEFAULT_SOCKET.as_ref())
        );
        for (wrong, code) in [
            (r#", "waitSeconds": 0"#, Code::InvalidConfig),
            (r#", "waitSeconds": 101"#, Code::InvalidConfig),
            (r#", "waitSeconds": "5""#, Code::Undecodable),
            (r#", "onUnknownPod": "allow""#, Code::Undecodable),
        ] {
            assert_eq!(config(wrong).unwrap_err().code, code, "{wrong}");
        }
        let old = br#"{"cniVersion": "0.2.0", "name": "pods"}"#;
        assert_eq!(
            NetworkConfig::parse(old).unwrap_err().code,
            Code::IncompatibleVersion
        );
    }

    #[test]
    fn addresses_are_those_of_the_interface_inside() {
        let bridge = r#"{"interfaces": [{"name": "cni0"}, {"name": "veth1"}, {"name": "eth0", "sandbox": "/run/netns/a"}],
            "ips": [{"version": "4", "address": "10.1.0.2/24", "interface": 2}, {"address": "fd00::2/64", "interface": 2},
                    {"address": "10.1.0.1/24", "interface": 0}]}"#;
        let of_no_interface = r#"{"ips": [{"address": "10.1.0.3/32"}]}"#;
        for (result, expected) in [
            (bridge, &["10.1.0.2", "fd00::2"][..]),
            (of_no_interface, &["10.1.0.3"]),
        ] {
            let found = config(&format!(r#", "prevResult": {result}"#))
                .unwrap()
                .addresses("eth0")
                .unwrap();
            assert_eq!(
                found.iter().map(ToString::to_string).collect::<Vec<_>>(),
                expected
            );
        }
    }

    #[test]
    fn a_result_without_an_address_of_the_pod_is_refused() {
        for (more, code) in [
            ("", Code::InvalidConfig),
            (r#", "prevResult": {}"#, Code::InvalidConfig),
            (
                r#", "prevResult": {"interfaces": [{"name": "eth0"}], "ips": [{"address": "10.1.0.2/24", "interface": 0}]}"#,
                Code::InvalidConfig,
            ),
            (
                r#", "prevResult": {"interfaces": [], "ips": [{"address": "10.1.0.2/24", "interface": 0}]}"#,
                Code::InvalidConfig,
            ),
            (
                r#", "prevResult": {"ips": [{"address": "10.1.0.2"}]}"#,
                Code::Undecodable,
            ),
        ] {
            let error = config(more).unwrap().addresses("eth0").unwrap_err();
            assert_eq!(error.code, code, "{more}");
        }
    }
}
