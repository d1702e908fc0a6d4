//! The invocation of dnsd as node-cache, and its usage text.

use std::ffi::OsString;
use std::path::Path;

use crate::config::corefile::ACCEPTED;

/// The name of the program, or of the first argument of `dnsd`.
const NAME: &str = "node-cache";

/// The arguments, if the program is called `node-cache` (a link is enough) or has that as its first argument.
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

/// The output of `-help`.
pub const USAGE: &str = "\
Usage of node-cache (as dnsd): the flags of node-local-dns, with one dash or two.

  -localip ADDRESSES                 addresses to serve, separated by commas, of one family or both (required)
  -conf FILE, -corefile FILE         the Corefile that is written and read (default /etc/Corefile)
  -basecorefile FILE                 its template (default /etc/coredns/Corefile.base)
  -kubednscm FOLDER                  folder of the kube-dns ConfigMap (default /etc/kube-dns, if it exists)
  -upstreamsvc NAME                  the Service of __PILLAR__CLUSTER__DNS__ (default kube-dns)
  -setupinterface=BOOL               create an interface with the addresses (default true)
  -interfacename NAME                its name (default nodelocaldns)
  -setupiptables=BOOL                rules that bypass conntrack for DNS to the addresses, and accept it (default true)
  -syncinterval SECONDS|SPAN         how often interface and rules are checked: 1 s to 24 h (default 60)
  -skipteardown                      interface and rules stay at exit
  -reloadwithsignal                  a changed ConfigMap applies at once, not at the next reload
  -health-port PORT                  port of probes in the rules (default 8080)
  -metrics-listen-address ADDR:PORT  setup metrics (default 0.0.0.0:9353; none if empty)
  -prometheus-listen-address ADDR    value of __PROMETHEUS__ENDPOINT__ (default :9253)
  -dns.port PORT, -p PORT            port of Corefile keys without one, and of the rules (default 53)
  -pidfile FILE                      file with the process id, once queries are answered
  -quiet                             the Corefile is not logged at start
  -plugins, -version, -help          print these, and exit

and of dnsd itself:

  -config FILE                       YAML with further fields: link, onStall, limits, host.fallback, …
";

/// The output of `-plugins`: the accepted directives, sorted.
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

    /// A flag that `-help` does not name would not be found.
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
