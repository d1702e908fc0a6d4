//! `KEEP=1`: how to play with what was built.

use std::{fs, io, os::unix::fs::PermissionsExt as _, path::PathBuf};

use crate::Pod;

use super::{
    DemoError,
    deployment::{Deployment, in_the_node},
};

impl Deployment {
    /// Says how to get in, what to look at and what to change.
    pub(super) fn show_how_to_play(&self) -> Result<(), DemoError> {
        let screen = self.screen();
        screen.heading("    It goes on running. Play with it (as root):");
        for pod in self.world.pods() {
            let script = self.write_entrance(pod)?;
            screen.typed(
                "#",
                &format!(
                    "{}   # a shell in {}/{}",
                    script.display(),
                    pod.namespace(),
                    pod.name()
                ),
            );
        }
        screen.line("In there: getent ahosts any.cdn.example.test; curl -m 1 http://api.example.test/");
        screen.line("The policies; edit, add or remove one and try again:");
        screen.typed("#", &format!("ls {}", self.world.manifests().folder().display()));
        screen.line("What the kernel holds:");
        let listing: &[&str] = match self.is_native() {
            true => &["nft list table inet egret"],
            false => &["ipset list", "iptables-save -c"],
        };
        for command in listing.iter().chain(&["conntrack -L"]) {
            screen.typed("#", &in_the_node(self.world.node(), command));
        }
        screen.line("What the daemons count and say:");
        for daemon in [&self.dnsd, &self.enforcer] {
            let url = format!("curl http://{}/metrics", daemon.spec().admin);
            screen.typed("#", &in_the_node(self.world.node(), &url));
            screen.typed("#", &format!("tail -f {}", daemon.log_file().display()));
        }
        screen.line("Ctrl-C (or SIGTERM) takes everything down.");
        Ok(())
    }

    fn write_entrance(&self, pod: &Pod) -> io::Result<PathBuf> {
        let path = self.world.files().join(format!("enter-{}", pod.name()));
        fs::write(&path, format!("#!/bin/sh\nexec {}\n", pod.entrance()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }
}
