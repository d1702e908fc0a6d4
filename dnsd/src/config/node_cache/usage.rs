//! How dnsd is called in the place of node-cache, and what it says then.

use std::ffi::OsString;
use std::path::Path;

use crate::config::corefile::ACCEPTED;

/// The name of the program, or of the first word behind `dnsd`.
const NAME: &str = "node-cache";

/// The flags, where the program is called `node-cache` (a link to it is enough) or with that word first.
#[must_use]
pub fn flags_of(command_line: &[OsString]) -> Option<Vec<String>> {
    let program = command_line.first().map(Path::new).and_then(Path::file_name);
    let behind = if program.is_some_and(|name| name == NAME) {
        1
    } else if command_line.get(1).is_some_and(|word| word == NAME) {
        2
    } else {
        return None;
    };
    let words = command_line.iter().skip(behind);
    Some(words.map(|word| word.to_string_lossy().into_owned()).collect())
}

/// What `-help` says.
pub const USAGE: &str = "\
Usage of node-cache (dnsd in its place): the flags of node-local-dns, with one dash or two.

  -localip ADDRESSES                 addresses to answer on, with commas between them; of both families, if wanted (required)
  -conf FILE, -corefile FILE         the Corefile that is written and read (default /etc/Corefile)
  -basecorefile FILE                 the template that it is made of (default /etc/coredns/Corefile.base)
  -kubednscm FOLDER                  where the kube-dns ConfigMap is mounted (default /etc/kube-dns, if that is there)
  -upstreamsvc NAME                  the Service that stands for __PILLAR__CLUSTER__DNS__ (default kube-dns)
  -setupinterface=BOOL               make an interface that holds the addresses (default true)
  -interfacename NAME                its name (default nodelocaldns)
  -setupiptables=BOOL                rules that keep DNS to the addresses out of conntrack, and let it in (default true)
  -syncinterval SECONDS|SPAN         how often interface and rules are looked at: 1 s to 24 h (default 60)
  -skipteardown                      interface and rules stay at the end
  -reloadwithsignal                  a changed ConfigMap is in force at once, not when the reload plugin looks
  -health-port PORT                  of the rules for probes (default 8080)
  -metrics-listen-address ADDR:PORT  metrics of setting up (default 0.0.0.0:9353; none if empty)
  -prometheus-listen-address ADDR    stands for __PROMETHEUS__ENDPOINT__ (default :9253)
  -dns.port PORT, -p PORT            of Corefile keys that say none, and of the rules (default 53)
  -pidfile FILE                      the process id is written there when queries are answered
  -quiet                             the Corefile is not logged at start
  -plugins, -version, -help          say so, and exit

and of dnsd itself:

  -config FILE                       YAML with what node-local-dns does not know: link, onStall, limits, host.fallback, …
";

/// What `-plugins` says: the directives that a Corefile may have, in the order of their names.
#[must_use]
pub fn plugins() -> Vec<&'static str> {
    let mut names: Vec<&str> = ACCEPTED.iter().map(|(name, _options)| *name).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(line: &str) -> Option<Vec<String>> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        flags_of(&words)
    }

    #[test]
    fn the_program_is_known_by_its_name_or_by_its_first_word() {
        for (line, expected) in [
            ("/node-cache -localip 1.2.3.4", Some(vec!["-localip", "1.2.3.4"])),
            ("/usr/bin/dnsd node-cache -quiet", Some(vec!["-quiet"])),
            ("node-cache", Some(vec![])),
            ("dnsd --listen node-cache", None),
            ("/node-cache/dnsd --listen 127.0.0.1:53", None),
            ("dnsd", None),
        ] {
            let expected = expected.map(|words| words.into_iter().map(str::to_owned).collect());
            assert_eq!(flags(line), expected, "{line}");
        }
    }

    /// A flag that `-help` does not name is one that nobody finds.
    #[test]
    fn every_flag_is_in_the_usage() {
        for flag in [
            "localip",
            "setupinterface",
            "interfacename",
            "setupiptables",
            "syncinterval",
            "metrics-listen-address",
            "prometheus-listen-address",
            "basecorefile",
            "corefile",
            "kubednscm",
            "upstreamsvc",
            "health-port",
            "skipteardown",
            "reloadwithsignal",
            "conf",
            "dns.port",
            "p",
            "pidfile",
            "quiet",
            "plugins",
            "version",
            "config",
        ] {
            let is_named = |end: &str| USAGE.contains(&format!("-{flag}{end}"));
            assert!([" ", "=", ","].into_iter().any(is_named), "{flag}");
        }
    }
}
