//! Why manifests cannot be acted on.

use std::fmt;
use std::io;
use std::path::PathBuf;

use egret_policies::api::manifest::Problem;

use super::paths::UnreadablePath;

/// Manifests that cannot be acted on, not even in part.
#[derive(Debug, thiserror::Error)]
pub enum UnreadableManifests {
    /// A path cannot be read.
    #[error(transparent)]
    Path(#[from] UnreadablePath),
    /// A file cannot be read.
    #[error("{}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// Several paths are `-`.
    #[error("- is standard input, which can be read only once")]
    StdinTwice,
    /// Files hold something that is no object.
    #[error("{}", ProblemLines(.0))]
    Problems(Vec<Problem>),
}

struct ProblemLines<'a>(&'a [Problem]);

/// The problems of all files that are told at once.
const MAX_PROBLEMS: usize = 100;

impl fmt::Display for ProblemLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, problem) in self.0.iter().take(MAX_PROBLEMS).enumerate() {
            f.write_str(if place == 0 { "" } else { "\n" })?;
            problem.fmt(f)?;
        }
        match self.0.len().saturating_sub(MAX_PROBLEMS) {
            0 => Ok(()),
            untold => write!(f, "\nand {untold} more errors"),
        }
    }
}
