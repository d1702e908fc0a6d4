//! Imported files on disk.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// The largest file, in octets.
const LARGEST: u64 = 4 << 20;

/// The loader of [`read`](super::read): the text of a file, or the paths that match a pattern, one a line, in order.
///
/// # Errors
/// When the file cannot be read, is a folder, or is larger than 4 MiB.
pub fn from_disk(path: &Path) -> io::Result<String> {
    if path.to_string_lossy().contains(['*', '?']) {
        return Ok(matching(path).join("\n"));
    }
    let found = fs::metadata(path)?;
    if found.is_dir() {
        return Err(io::Error::other("it is a folder"));
    }
    if found.len() > LARGEST {
        return Err(io::Error::other(format!("it is larger than {LARGEST} octets")));
    }
    fs::read_to_string(path)
}

fn matching(pattern: &Path) -> Vec<String> {
    let mut found = vec![PathBuf::new()];
    for component in pattern.components() {
        found = found.iter().flat_map(|folder| step(folder, component)).collect();
    }
    let mut paths: Vec<String> = found
        .iter()
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    paths.sort();
    paths
}

/// The entries of a folder that match one component.
fn step(folder: &Path, component: Component<'_>) -> Vec<PathBuf> {
    let Component::Normal(name) = component else {
        return vec![folder.join(component)];
    };
    let pattern = name.to_string_lossy();
    if !pattern.contains(['*', '?']) {
        let path = folder.join(name);
        return if path.exists() { vec![path] } else { Vec::new() };
    }
    let here = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let Ok(entries) = fs::read_dir(here) else {
        return Vec::new();
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .filter(|name| is_match(&pattern, name))
        .map(|name| folder.join(name))
        .collect()
}

fn is_match(pattern: &str, name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    matches_from(pattern.as_bytes(), name.as_bytes())
}

/// Matching with one `*` needs no backtracking.
fn matches_from(pattern: &[u8], name: &[u8]) -> bool {
    let Some(star) = pattern.iter().position(|octet| *octet == b'*') else {
        return is_alike(pattern, name);
    };
    let (before, after) = (&pattern[..star], &pattern[star + 1..]);
    name.len() >= before.len() + after.len()
        && is_alike(before, &name[..before.len()])
        && is_alike(after, &name[name.len() - after.len()..])
}

fn is_alike(pattern: &[u8], name: &[u8]) -> bool {
    pattern.len() == name.len()
        && pattern
            .iter()
            .zip(name)
            .all(|(wanted, found)| *wanted == b'?' || wanted == found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_number_of_octets_and_a_question_mark_is_one() {
        for (pattern, name, matches) in [
            ("*.override", "a.override", true),
            ("*.override", ".override", true),
            ("*.override", "a.server", false),
            ("a*b", "ab", true),
            ("a*b", "a", false),
            ("ab*ba", "aba", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
        ] {
            assert_eq!(is_match(pattern, OsStr::new(name)), matches, "{pattern} {name}");
        }
    }
}
