//! The commands of the CNI specification (section 2).

use std::time::Duration;

use egret_shared::cni::{Network, Reply, Request};
use serde_json::{Value, json};

use crate::enforcer;
use crate::error::{CniError, Code};
use crate::host_interface;
use crate::network_config::{NetworkConfig, OnUnknownPod, VERSIONS, version_of};
use crate::parameters::Parameters;
use crate::store::Store;

/// How long the enforcer is told that a network is gone. It is no loss if it is not: the file is gone.
const TELL_WITHIN: Duration = Duration::from_secs(1);

/// Runs a command; returns its result.
pub(crate) fn run(command: &str, parameters: &Parameters, config: &[u8]) -> Result<Option<Value>, CniError> {
    match command {
        "ADD" => add(parameters, &NetworkConfig::parse(config)?).map(Some),
        "DEL" => del(parameters, &NetworkConfig::parse(config)?).map(|()| None),
        "CHECK" => check(parameters, &NetworkConfig::parse(config)?).map(|()| None),
        "GC" => collect_garbage(&NetworkConfig::parse(config)?).map(|()| None),
        "STATUS" => status(&NetworkConfig::parse(config)?).map(|()| None),
        "VERSION" => Ok(Some(
            json!({"cniVersion": version_of(config), "supportedVersions": VERSIONS}),
        )),
        _ => {
            let reason =
                format!("CNI_COMMAND is {command:?}; accepted are ADD, DEL, CHECK, GC, STATUS, VERSION");
            Err(CniError::new(Code::InvalidEnvironment, reason))
        }
    }
}

/// Returns the result of the plugins before, unchanged, once the pod's rules are in the kernel.
fn add(parameters: &Parameters, config: &NetworkConfig) -> Result<Value, CniError> {
    let result = config.result()?.clone();
    let network = network(parameters, config)?;
    let store = Store::beside(&config.socket);
    // Before it is reported: an enforcer that starts meanwhile reads it.
    store
        .put(&network)
        .map_err(|error| CniError::io("the network cannot be kept", &error))?;
    let reply = enforcer::ask(&config.socket, config.wait(), |left| Request::Add {
        network: network.clone(),
        wait_millis: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
    });
    let Err(reason) = outcome(reply) else {
        return Ok(result);
    };
    match config.on_unknown_pod {
        OnUnknownPod::Start => {
            eprintln!("egret-cni: {} starts as an unknown pod: {reason}", network.pod);
            Ok(result)
        }
        OnUnknownPod::Fail => {
            forget(config, &store, &network.container, &network.interface)?;
            let reason = format!("the rules of {} are not in force: {reason}", network.pod);
            Err(CniError::new(Code::TryAgainLater, reason))
        }
    }
}

fn network(parameters: &Parameters, config: &NetworkConfig) -> Result<Network, CniError> {
    let (pod, uid) = parameters.pod()?;
    let (container, interface) = (parameters.container()?, parameters.interface()?);
    let host_interface = host_interface::find(parameters.netns()?, interface)?;
    Ok(Network {
        network: config.name.clone(),
        container: container.to_owned(),
        interface: interface.to_owned(),
        pod,
        uid,
        host_interface,
        addresses: config.addresses(interface)?,
    })
}

/// The network is gone, whoever knew of it.
fn del(parameters: &Parameters, config: &NetworkConfig) -> Result<(), CniError> {
    let store = Store::beside(&config.socket);
    forget(config, &store, parameters.container()?, parameters.interface()?)
}

fn forget(config: &NetworkConfig, store: &Store, container: &str, interface: &str) -> Result<(), CniError> {
    store
        .remove(container, interface)
        .map_err(|error| CniError::io("the network cannot be forgotten", &error))?;
    let del = |_left| Request::Del {
        container: container.to_owned(),
        interface: interface.to_owned(),
    };
    // An enforcer that is away finds no file when it is back.
    if let Err(reason) = outcome(enforcer::ask(&config.socket, Duration::ZERO, del)) {
        eprintln!("egret-cni: the enforcer was not told that {container} has no network: {reason}");
    }
    Ok(())
}

fn check(parameters: &Parameters, config: &NetworkConfig) -> Result<(), CniError> {
    let network = network(parameters, config)?;
    let reply = enforcer::ask(&config.socket, TELL_WITHIN, |_left| Request::Check {
        network: network.clone(),
    });
    match (outcome(reply), config.on_unknown_pod) {
        (Ok(()), _) | (Err(_), OnUnknownPod::Start) => Ok(()),
        (Err(reason), OnUnknownPod::Fail) => {
            let reason = format!("the rules of {} are not in force: {reason}", network.pod);
            Err(CniError::new(Code::NotInForce, reason))
        }
    }
}

/// Forgets the networks of this configuration that the runtime does not have any more.
fn collect_garbage(config: &NetworkConfig) -> Result<(), CniError> {
    let missing = || CniError::new(Code::InvalidConfig, "cni.dev/valid-attachments is missing");
    let valid = config.valid_attachments.as_ref().ok_or_else(missing)?;
    let store = Store::beside(&config.socket);
    let is_valid = |network: &Network| {
        let mut valid = valid.iter();
        valid.any(|one| one.container == network.container && one.interface == network.interface)
    };
    let known = store.networks().into_iter();
    for gone in known.filter(|network| network.network == config.name && !is_valid(network)) {
        forget(config, &store, &gone.container, &gone.interface)?;
    }
    Ok(())
}

/// Whether ADD can succeed.
fn status(config: &NetworkConfig) -> Result<(), CniError> {
    let reply = enforcer::ask(&config.socket, TELL_WITHIN, |_left| Request::Status);
    match (outcome(reply), config.on_unknown_pod) {
        (Ok(()), _) | (Err(_), OnUnknownPod::Start) => Ok(()),
        (Err(reason), OnUnknownPod::Fail) => Err(CniError::new(Code::NotAvailable, reason)),
    }
}

fn outcome(reply: Result<Reply, String>) -> Result<(), String> {
    match reply? {
        Reply::Ready => Ok(()),
        Reply::NotReady { reason } => Err(reason),
    }
}
