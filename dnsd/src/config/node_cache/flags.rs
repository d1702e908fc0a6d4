//! The flags of `node-cache`, as Go's package `flag` reads them: one dash or two, `-name value` or `-name=value`,
//! booleans only as `-name` or `-name=true`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::config::MillisDuration;
use crate::config::host_setup::{Fallback, HostSetup, RuleSettings};

/// The flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flags {
    /// `-localip`: the addresses that it serves, of one family or both.
    pub local_ips: Vec<IpAddr>,
    /// `-setupinterface`.
    pub sets_up_interface: bool,
    /// `-interfacename`.
    pub interface_name: String,
    /// `-setupiptables`.
    pub sets_up_rules: bool,
    /// `-syncinterval`: how often interface and rules are checked.
    pub sync_interval: Duration,
    /// `-metrics-listen-address`: the address of the setup metrics; `None` if empty.
    pub metrics_address: Option<SocketAddr>,
    /// `-prometheus-listen-address`: the value of `__PROMETHEUS__ENDPOINT__`.
    pub prometheus_address: String,
    /// `-basecorefile`: the template.
    pub base_corefile: PathBuf,
    /// `-conf`, otherwise `-corefile`: the Corefile that is written and read.
    pub corefile: PathBuf,
    /// `-kubednscm`: the folder of the `kube-dns` ConfigMap, if it is set.
    pub kube_dns: Option<PathBuf>,
    /// `-upstreamsvc`: the Service whose address is the value of `__PILLAR__CLUSTER__DNS__`.
    pub upstream_service: String,
    /// `-health-port`: the port of probes in the rules; the Corefile has the address of `/health`.
    pub health_port: u16,
    /// `-skipteardown`: interface and rules stay at exit.
    pub skips_teardown: bool,
    /// `-reloadwithsignal`: a changed ConfigMap applies at once, not at the next `reload`.
    pub reloads_at_once: bool,
    /// `-dns.port`, `-p`.
    pub dns_port: u16,
    /// `-pidfile`.
    pub pidfile: Option<PathBuf>,
    /// `-quiet`: the Corefile is not logged at start.
    pub quiet: bool,
    /// `-config`: dnsd's own file, for fields that node-local-dns does not have (`link`, `onStall`, …).
    pub own: Option<PathBuf>,
}

/// The request of a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invocation {
    /// Serve.
    Serve(Box<Flags>),
    /// `-h`, `-help`.
    Help,
    /// `-version`.
    Version,
    /// `-plugins`.
    Plugins,
}

impl Flags {
    /// The setup of the host.
    #[must_use]
    pub fn setup(&self, fallback: Fallback) -> HostSetup {
        HostSetup {
            interface: self.sets_up_interface.then(|| self.interface_name.clone()),
            rules: self.sets_up_rules,
            settings: RuleSettings {
                local_ips: self.local_ips.clone(),
                dns_port: self.dns_port,
                health_port: self.health_port,
                fallback,
                intercept: None,
            },
            sync_interval: self.sync_interval,
            skips_teardown: self.skips_teardown,
        }
    }
}

/// Why a command line is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidFlag {
    /// An unknown flag.
    #[error("flag provided but not defined: -{0}; `dnsd node-cache -help` lists what is accepted")]
    Unknown(String),
    /// A flag without a value at the end.
    #[error("flag needs an argument: -{0}")]
    NoValue(&'static str),
    /// An invalid value.
    #[error("invalid value {value:?} for flag -{flag}: {accepted} is accepted")]
    Value {
        /// The flag.
        flag: &'static str,
        /// The value.
        value: String,
        /// What is accepted.
        accepted: &'static str,
    },
    /// `-localip` is missing; it has no default.
    #[error("-localip is missing: one or more IP addresses, with commas between them, are accepted")]
    NoLocalIp,
    /// An argument that is not a flag.
    #[error("extra command line arguments: {0}; only flags are accepted")]
    Extra(String),
}

/// Reads the arguments, without the name of the program.
///
/// # Errors
/// With the flag.
pub fn read(arguments: impl IntoIterator<Item = String>) -> Result<Invocation, InvalidFlag> {
    let mut written = FlagsBuilder::default();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let Some(flag) = flag_of(&argument) else {
            return Err(InvalidFlag::Extra(argument));
        };
        if flag.is_empty() {
            break;
        }
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (flag, None),
        };
        match name {
            "h" | "help" => return Ok(Invocation::Help),
            "version" => written.version = truth("version", value)?,
            "plugins" => written.plugins = truth("plugins", value)?,
            name => written.take(name, value, &mut arguments)?,
        }
    }
    if let Some(extra) = arguments.next() {
        return Err(InvalidFlag::Extra(extra));
    }
    written.build()
}

/// The name after one dash or two; empty for `--`, which ends the flags.
fn flag_of(argument: &str) -> Option<&str> {
    let flag = argument.strip_prefix('-').filter(|flag| !flag.is_empty())?;
    Some(flag.strip_prefix('-').unwrap_or(flag))
}

/// The flags so far, over the defaults.
struct FlagsBuilder {
    flags: Flags,
    conf: Option<PathBuf>,
    version: bool,
    plugins: bool,
}

impl Default for FlagsBuilder {
    fn default() -> Self {
        Self {
            flags: Flags {
                local_ips: Vec::new(),
                sets_up_interface: true,
                interface_name: "nodelocaldns".to_owned(),
                sets_up_rules: true,
                sync_interval: Duration::from_secs(60),
                metrics_address: Some(SocketAddr::from(([0, 0, 0, 0], 9353))),
                prometheus_address: ":9253".to_owned(),
                base_corefile: "/etc/coredns/Corefile.base".into(),
                corefile: "/etc/Corefile".into(),
                kube_dns: None,
                upstream_service: "kube-dns".to_owned(),
                health_port: 8080,
                skips_teardown: false,
                reloads_at_once: false,
                dns_port: 53,
                pidfile: None,
                quiet: false,
                own: None,
            },
            conf: None,
            version: false,
            plugins: false,
        }
    }
}

impl FlagsBuilder {
    fn take(
        &mut self,
        name: &str,
        value: Option<String>,
        rest: &mut impl Iterator<Item = String>,
    ) -> Result<(), InvalidFlag> {
        let flags = &mut self.flags;
        match name {
            "setupinterface" => flags.sets_up_interface = truth("setupinterface", value)?,
            "setupiptables" => flags.sets_up_rules = truth("setupiptables", value)?,
            "skipteardown" => flags.skips_teardown = truth("skipteardown", value)?,
            "reloadwithsignal" => flags.reloads_at_once = truth("reloadwithsignal", value)?,
            "quiet" => flags.quiet = truth("quiet", value)?,
            "localip" => flags.local_ips = addresses(&text("localip", value, rest)?)?,
            "interfacename" => flags.interface_name = text("interfacename", value, rest)?,
            "syncinterval" => flags.sync_interval = interval(&text("syncinterval", value, rest)?)?,
            "metrics-listen-address" => {
                flags.metrics_address = listen_address(&text("metrics-listen-address", value, rest)?)?;
            }
            "prometheus-listen-address" => {
                flags.prometheus_address = text("prometheus-listen-address", value, rest)?;
            }
            "basecorefile" => flags.base_corefile = text("basecorefile", value, rest)?.into(),
            "corefile" => flags.corefile = text("corefile", value, rest)?.into(),
            "conf" => self.conf = path(text("conf", value, rest)?),
            "kubednscm" => flags.kube_dns = path(text("kubednscm", value, rest)?),
            "upstreamsvc" => flags.upstream_service = text("upstreamsvc", value, rest)?,
            "health-port" => flags.health_port = port("health-port", &text("health-port", value, rest)?)?,
            "dns.port" => flags.dns_port = port("dns.port", &text("dns.port", value, rest)?)?,
            "p" => flags.dns_port = port("p", &text("p", value, rest)?)?,
            "pidfile" => flags.pidfile = path(text("pidfile", value, rest)?),
            "config" => flags.own = path(text("config", value, rest)?),
            unknown => return Err(InvalidFlag::Unknown(unknown.to_owned())),
        }
        Ok(())
    }

    fn build(self) -> Result<Invocation, InvalidFlag> {
        if self.version {
            return Ok(Invocation::Version);
        }
        if self.plugins {
            return Ok(Invocation::Plugins);
        }
        let mut flags = self.flags;
        if flags.local_ips.is_empty() {
            return Err(InvalidFlag::NoLocalIp);
        }
        flags.corefile = self.conf.unwrap_or(flags.corefile);
        Ok(Invocation::Serve(Box::new(flags)))
    }
}

fn text(
    flag: &'static str,
    value: Option<String>,
    rest: &mut impl Iterator<Item = String>,
) -> Result<String, InvalidFlag> {
    value.or_else(|| rest.next()).ok_or(InvalidFlag::NoValue(flag))
}

/// The values of Go's `strconv.ParseBool`.
fn truth(flag: &'static str, value: Option<String>) -> Result<bool, InvalidFlag> {
    match value.as_deref() {
        None | Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
        Some(other) => Err(invalid(flag, other, "true or false")),
    }
}

/// An empty path is `None`.
fn path(text: String) -> Option<PathBuf> {
    (!text.is_empty()).then(|| text.into())
}

fn addresses(text: &str) -> Result<Vec<IpAddr>, InvalidFlag> {
    let address = |text: &str| {
        let refused = || invalid("localip", text, "IP addresses with commas between them");
        text.parse().map_err(|_invalid| refused())
    };
    let mut addresses: Vec<IpAddr> = Vec::new();
    for text in text.split(',') {
        let address = address(text)?;
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

/// node-cache reads a number as seconds, and overflows with a unit; here both mean what they say.
fn interval(text: &str) -> Result<Duration, InvalidFlag> {
    let refused = || {
        invalid(
            "syncinterval",
            text,
            "a number of seconds from 1 to 86400, or a span like 30s or 5m",
        )
    };
    let span = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_no_number) => text
            .parse::<MillisDuration>()
            .map(MillisDuration::as_duration)
            .map_err(|_invalid| refused())?,
    };
    let range = Duration::from_secs(1)..=Duration::from_secs(86_400);
    Some(span).filter(|span| range.contains(span)).ok_or_else(refused)
}

fn port(flag: &'static str, text: &str) -> Result<u16, InvalidFlag> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| invalid(flag, text, "a number from 1 to 65535"))
}

/// As in Go: without a host, every address of both families.
fn listen_address(text: &str) -> Result<Option<SocketAddr>, InvalidFlag> {
    if text.is_empty() {
        return Ok(None);
    }
    let whole = text
        .strip_prefix(':')
        .map_or_else(|| text.to_owned(), |port| format!("[::]:{port}"));
    let address = whole.parse().map(Some);
    address.map_err(|_invalid| invalid("metrics-listen-address", text, "ADDRESS:PORT or :PORT"))
}

fn invalid(flag: &'static str, value: &str, accepted: &'static str) -> InvalidFlag {
    InvalidFlag::Value {
        flag,
        value: value.to_owned(),
        accepted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Invocation, InvalidFlag> {
        super::read(line.split(' ').filter(|word| !word.is_empty()).map(str::to_owned))
    }

    fn flags(line: &str) -> Flags {
        match read(line) {
            Ok(Invocation::Serve(flags)) => *flags,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_arguments_of_the_public_manifest_are_accepted() {
        let taken = flags(
            "-localip 169.254.20.10,10.96.0.10 -conf /etc/Corefile -upstreamsvc kube-dns-upstream -pidfile /run/p",
        );
        assert_eq!(
            taken.local_ips,
            ["169.254.20.10", "10.96.0.10"].map(|ip| ip.parse::<IpAddr>().unwrap())
        );
        assert_eq!(taken.corefile, PathBuf::from("/etc/Corefile"));
        assert_eq!(taken.upstream_service, "kube-dns-upstream");
        assert_eq!(taken.pidfile, Some(PathBuf::from("/run/p")));
        assert_eq!(
            (taken.dns_port, taken.health_port, taken.sync_interval.as_secs()),
            (53, 8080, 60)
        );
        assert!(taken.sets_up_interface && taken.sets_up_rules && !taken.skips_teardown);
    }

    /// Sets each flag to a value other than its default.
    #[test]
    fn every_flag_changes_what_it_is_for() {
        let plain = flags("-localip 192.0.2.1");
        let without = |line: &str| flags(&format!("-localip 192.0.2.1 {line}"));
        for line in [
            "-localip 192.0.2.2",
            "--localip=192.0.2.1,fd00::1",
            "-setupinterface=false",
            "-interfacename other0",
            "-setupiptables=false",
            "-syncinterval 5",
            "-syncinterval=5m",
            "-metrics-listen-address :9354",
            "-metrics-listen-address=",
            "-prometheus-listen-address 127.0.0.1:9254",
            "-basecorefile /a",
            "-corefile /b",
            "-conf /c",
            "-kubednscm /d",
            "-upstreamsvc other",
            "-health-port 8081",
            "-skipteardown",
            "-reloadwithsignal=true",
            "-dns.port 54",
            "-p=55",
            "-pidfile /e",
            "-quiet",
            "-config /f",
        ] {
            assert_ne!(without(line), plain, "{line}");
        }
        assert_eq!(without("-corefile /b -conf /c").corefile, PathBuf::from("/c"));
        assert_eq!(without("-syncinterval 30s"), without("-syncinterval 30"));
        assert_eq!(without("-localip 10.0.0.1,10.0.0.1").local_ips.len(), 1);
        for (line, wanted) in [
            ("-help", Invocation::Help),
            ("-version", Invocation::Version),
            ("-plugins", Invocation::Plugins),
        ] {
            assert_eq!(read(line), Ok(wanted), "{line}");
        }
    }

    #[test]
    fn an_invalid_flag_is_named_with_what_is_accepted() {
        for (line, words) in [
            ("", "-localip is missing"),
            ("-localip", "needs an argument: -localip"),
            ("-localip=", "invalid value \"\" for flag -localip"),
            ("-localip 192.0.2.1, ", "invalid value \"\" for flag -localip"),
            ("-localip 192.0.2.1 extra", "extra command line arguments: extra"),
            (
                "-localip 192.0.2.1 -- extra",
                "extra command line arguments: extra",
            ),
            (
                "-localip 192.0.2.1 -setupinterface false",
                "extra command line arguments: false",
            ),
            (
                "-localip 192.0.2.1 -setupiptables=maybe",
                "true or false is accepted",
            ),
            ("-localip 192.0.2.1 -syncinterval 0", "from 1 to 86400"),
            ("-localip 192.0.2.1 -syncinterval soon", "a span like 30s"),
            ("-localip 192.0.2.1 -p 0", "from 1 to 65535"),
            ("-localip 192.0.2.1 -health-port 65536", "from 1 to 65535"),
            (
                "-localip 192.0.2.1 -metrics-listen-address 9353",
                "ADDRESS:PORT or :PORT",
            ),
            ("-localip 192.0.2.1 -colour", "not defined: -colour"),
        ] {
            let error = read(line).expect_err(line).to_string();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
