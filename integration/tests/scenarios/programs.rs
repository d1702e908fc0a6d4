//! The programs that write rules, as a story wants them: they wait, or refuse.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// `iptables-restore` of both flavours and families, in a folder of a world's, which goes with the world: then nothing is held.
pub(super) struct Programs {
    folder: PathBuf,
}

impl Programs {
    pub(super) fn beside(files: &Path) -> io::Result<Self> {
        let folder = files.join("programs-of-the-story");
        fs::create_dir(&folder)?;
        let programs = Self { folder };
        for family in ["iptables", "ip6tables"] {
            for flavour in ["nft", "legacy"] {
                programs.write(&format!("{family}-{flavour}-restore"))?;
            }
        }
        Ok(programs)
    }

    fn write(&self, program: &str) -> io::Result<()> {
        let folder = self.folder.display();
        let text = format!(
            "#!/bin/sh\ncd {folder} || exit 1\n[ -e held ] && : > running\n\
             while [ -e held ]; do sleep 0.02; done\n\
             cat > text.$$\n\
             if [ -e refused ] && grep -qFf refused text.$$; then\n\
             rm text.$$; echo 'iptables-restore: line 3 failed' >&2; exit 1\nfi\n\
             exec 3< text.$$; rm text.$$; exec /usr/sbin/{program} \"$@\" <&3\n"
        );
        let path = self.folder.join(program);
        fs::write(&path, text)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
    }

    /// What is searched for programs.
    pub(super) fn path(&self) -> String {
        format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.folder.display())
    }

    /// From now on they wait before they change anything.
    pub(super) fn hold(&self) -> io::Result<()> {
        fs::write(self.folder.join("held"), "")
    }

    /// Whether one has begun and waits.
    pub(super) fn is_running(&self) -> bool {
        let is_there = |name: &str| self.folder.join(name).exists();
        is_there("held") && is_there("running")
    }

    pub(super) fn release(&self) -> io::Result<()> {
        fs::remove_file(self.folder.join("held"))
    }

    /// From now on they refuse what has these words in it.
    pub(super) fn refuse(&self, words: &str) -> io::Result<()> {
        fs::write(self.folder.join("refused"), format!("{words}\n"))
    }

    pub(super) fn accept(&self) -> io::Result<()> {
        fs::remove_file(self.folder.join("refused"))
    }
}
