//! kubectl and helm, as an administrator uses them.

use std::{fs, path::PathBuf, process::Command};

use super::{Failure, machine::output};

/// Runs both in the network of the control plane.
#[derive(Clone)]
pub(super) struct Kubectl {
    pub(super) net: String,
    pub(super) kubectl: String,
    pub(super) helm: String,
    pub(super) kubeconfig: String,
    pub(super) folder: PathBuf,
}

impl Kubectl {
    /// What `kubectl get` prints.
    pub(super) fn get(&self, arguments: &[&str]) -> Result<String, Failure> {
        self.run(&[&["get"], arguments].concat())
    }

    /// What kubectl prints; an error with what it says unless it succeeds.
    pub(super) fn run(&self, arguments: &[&str]) -> Result<String, Failure> {
        self.command(&self.kubectl, arguments)
    }

    pub(super) fn helm(&self, arguments: &[&str]) -> Result<String, Failure> {
        self.command(&self.helm, arguments)
    }

    pub(super) fn apply(&self, yaml: &str) -> Result<String, Failure> {
        let path = self.folder.join("applied.yaml");
        fs::write(&path, yaml)?;
        self.run(&["apply", "-f", &path.display().to_string()])
    }

    pub(super) fn how_to_use(&self) -> String {
        format!(
            "nsenter {} {} --kubeconfig {} get pods -A",
            self.net, self.kubectl, self.kubeconfig
        )
    }

    /// To be started by the caller.
    pub(super) fn command_of(&self, arguments: &[&str]) -> Command {
        self.inside(&self.kubectl, arguments)
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Result<String, Failure> {
        output(&mut self.inside(program, arguments), arguments)
    }

    fn inside(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args([&self.net, program, "--kubeconfig", &self.kubeconfig])
            .args(arguments)
            .env("HOME", &self.folder);
        command
    }
}
