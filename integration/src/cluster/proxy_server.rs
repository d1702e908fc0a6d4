//! The proxy-server of the control plane, which has no other way to the nodes.

use std::{fs, path::Path};

use crate::daemon;

use super::{Failure, machine::Machine};

/// The user of `deploy/konnectivity/rbac.yaml`.
pub(super) const USER: &str = "system:konnectivity-server";
pub(super) const SELECTOR: &str = "/etc/kubernetes/konnectivity/egress-selector.yaml";
pub(super) const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/konnectivity");
pub(super) const POLICIES: &str = "/etc/kubernetes/konnectivity/policies";

/// Leaves the control plane of this machine no way to nodes, pods and Services: its first segment to them is refused. They reach it.
pub(super) fn partition(machine: &Machine, bridge: &str) -> Result<(), Failure> {
    for program in ["iptables", "ip6tables"] {
        machine.run(&[
            program, "-A", "OUTPUT", "-o", bridge, "-p", "tcp", "--syn", "-j", "REJECT",
        ])?;
    }
    Ok(())
}

/// Writes what the API server reads when it starts.
pub(super) fn write_files(machine: &Machine, kubeconfig: &str) -> Result<(), Failure> {
    machine.run(&[
        "mkdir",
        "-p",
        "/etc/kubernetes/pki",
        POLICIES,
        "/run/konnectivity",
    ])?;
    let selector = format!("{MANIFESTS}/egress-selector.yaml");
    machine.run(&["cp", &selector, SELECTOR])?;
    machine.run(&[
        "cp",
        kubeconfig,
        "/etc/kubernetes/konnectivity/konnectivity-server.conf",
    ])?;
    Ok(())
}

/// Starts proxy-server as `deploy/konnectivity/proxy-server.yaml` does, with the certificate that the API server has made.
pub(super) fn start_server(machine: &mut Machine, certificates: &Path) -> Result<(), Failure> {
    for file in ["apiserver.crt", "apiserver.key"] {
        let file = certificates.join(file).display().to_string();
        machine.run(&["cp", &file, "/etc/kubernetes/pki"])?;
    }
    let manifest = fs::read_to_string(format!("{MANIFESTS}/proxy-server.yaml"))?;
    let arguments = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("    - --"))
        .map(|argument| format!("--{argument} "))
        .collect::<String>();
    let program = daemon::binary("proxy-server")?.display().to_string();
    machine.spawn(
        &program,
        &format!("{arguments}--agent-identifier-binding=enforce"),
    )
}
