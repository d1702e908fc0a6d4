//! The fields under `intercept`: interception of pods' queries to other resolvers.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::str::FromStr;

use egret_kernel::{Family, Mark};
use egret_shared::net::IpNet;
use serde::{Deserialize, Serialize};

use super::Invalid;
use crate::config::environment;
use crate::config::host_setup::{HostSetup, INTERCEPT_PORT, Interception};
use crate::config::values::InvalidValue;

/// The fields under `intercept`.
#[derive(Clone, Debug, Default, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct InterceptOptions {
    /// Answer pods' queries to other resolvers at port 53; needs --rules [default: false]
    #[arg(long = "intercept", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub enabled: Option<bool>,
    /// Where intercepted queries are sent [default: ours]
    #[arg(long = "intercept-upstream", value_name = "WHOM")]
    pub upstream: Option<InterceptUpstream>,
    /// With original: resolvers whose answers are recorded [default: none]
    #[arg(long = "trusted-resolver", value_name = "ADDRESS", num_args = 1..)]
    pub trusted_resolvers: Option<Vec<IpAddr>>,
    /// Destinations that are not intercepted [default: none]
    #[arg(long = "intercept-except", value_name = "CIDR", num_args = 1..)]
    pub except: Option<Vec<IpNet>>,
    /// Bits of the packet mark that no other program writes [default: 0x20]
    #[arg(long = "intercept-mark", value_name = "BITS")]
    pub mark: Option<MarkBits>,
}

/// Where intercepted queries are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum InterceptUpstream {
    /// To dnsd's own blocks, as other queries.
    Ours,
    /// To the resolver that the pod queried.
    Original,
}

/// Bits of a mark, all set, in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MarkBits(NonZeroU32);

impl FromStr for MarkBits {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let digits = text.strip_prefix("0x");
        let bits = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        bits.and_then(NonZeroU32::new)
            .map(Self)
            .ok_or_else(|| InvalidValue::Mark(text.to_owned()))
    }
}

impl fmt::Display for MarkBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

egret_shared::as_text!(MarkBits);

/// Services are exempt: kube-proxy translates after the intercepting rule, and the socket of the connection would not
/// be found.
fn services() -> impl Iterator<Item = IpNet> {
    environment::services().into_iter().map(IpNet::from)
}

impl InterceptOptions {
    /// These fields; `below` has the values of unset ones.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        over! {
            self, below:
            enabled upstream trusted_resolvers except mark;
        }
    }

    /// Adds the interception to the setup of the host.
    ///
    /// # Errors
    /// With the field, or what it needs.
    pub fn apply(self, setup: Option<HostSetup>) -> Result<Option<HostSetup>, Invalid> {
        if !self.enabled.unwrap_or(false) {
            return self.is_unsaid().map(|()| setup);
        }
        let needs_rules = Invalid::Contradiction("intercept needs host.rules: true");
        let mut setup = setup.filter(|setup| setup.rules).ok_or(needs_rules)?;
        if setup.settings.dns_port != INTERCEPT_PORT {
            return Err(Invalid::Contradiction(
                "intercept answers from port 53: dnsd must listen on it",
            ));
        }
        setup.settings.intercept = Some(self.interception(&setup.settings.local_ips)?);
        Ok(Some(setup))
    }

    fn interception(self, local: &[IpAddr]) -> Result<Interception, Invalid> {
        const DEFAULT_MARK: NonZeroU32 = NonZeroU32::new(0x20).expect("it is not zero");
        let bits = self.mark.map_or(DEFAULT_MARK, |mark| mark.0);
        let first = |family| {
            local
                .iter()
                .copied()
                .find(|address| Family::of(*address) == family)
        };
        Ok(Interception {
            to: Family::ALL.into_iter().filter_map(first).collect(),
            mark: Mark::new(bits.get(), bits),
            except: self.except.into_iter().flatten().chain(services()).collect(),
        })
    }

    /// The trusted resolvers with `original`; `None` with `ours`.
    ///
    /// # Errors
    /// When resolvers are trusted and `upstream` is ours.
    pub fn trusted(&self) -> Result<Option<BTreeSet<IpAddr>>, Invalid> {
        let trusted = self.trusted_resolvers.iter().flatten().copied().collect();
        match self.upstream.unwrap_or(InterceptUpstream::Ours) {
            InterceptUpstream::Original => Ok(Some(trusted)),
            InterceptUpstream::Ours if trusted.is_empty() => Ok(None),
            InterceptUpstream::Ours => Err(Invalid::Contradiction(
                "intercept.trustedResolvers are asked with intercept.upstream original only",
            )),
        }
    }

    /// A field without effect would be believed to have one.
    fn is_unsaid(&self) -> Result<(), Invalid> {
        let is_said = self.except.is_some()
            || self.mark.is_some()
            || self.upstream.is_some()
            || self.trusted_resolvers.is_some();
        if is_said {
            return Err(Invalid::Contradiction(
                "the fields of intercept say how, and intercept.enabled is not true",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::host_setup::{Fallback, RuleSettings};

    fn setup(rules: bool, dns_port: u16) -> Option<HostSetup> {
        let local_ips = ["169.254.20.10", "10.96.0.10", "fd00::a"].map(|text| text.parse().unwrap());
        Some(HostSetup {
            interface: None,
            rules,
            settings: RuleSettings {
                local_ips: local_ips.to_vec(),
                dns_port,
                health_port: 8080,
                fallback: Fallback::None,
                intercept: None,
            },
            sync_interval: Duration::from_secs(60),
            skips_teardown: false,
        })
    }

    fn read(text: &str) -> InterceptOptions {
        serde_saphyr::from_str(text).unwrap()
    }

    #[test]
    fn intercepted_packets_go_to_the_first_address_of_each_family() {
        let written = read("{enabled: true, mark: \"0x30\", except: [192.0.2.0/24]}");
        let setup = written.apply(setup(true, 53)).unwrap().unwrap();
        let found = setup.settings.intercept.unwrap();
        let to: Vec<String> = found.to.iter().map(ToString::to_string).collect();
        assert_eq!(to, ["169.254.20.10", "fd00::a"]);
        assert_eq!((found.mark.value(), found.mark.mask().get()), (0x30, 0x30));
        assert_eq!(found.except[0], "192.0.2.0/24".parse().unwrap());
    }

    #[test]
    fn impossible_interception_and_fields_without_effect_are_refused() {
        for (text, setup, reason) in [
            ("{enabled: true}", None, "host.rules"),
            ("{enabled: true}", setup(false, 53), "host.rules"),
            ("{enabled: true}", setup(true, 5353), "port 53"),
            ("{mark: \"0x20\"}", setup(true, 53), "intercept.enabled"),
            ("{upstream: original}", setup(true, 53), "intercept.enabled"),
        ] {
            let refused = read(text).apply(setup).unwrap_err().to_string();
            assert!(refused.contains(reason), "{text}: {refused}");
        }
        assert_eq!(read("{}").apply(setup(true, 53)).unwrap(), setup(true, 53));
        assert!(serde_saphyr::from_str::<InterceptOptions>("{mark: \"0x0\"}").is_err());
        assert!(
            read("{trustedResolvers: [192.0.2.1]}").trusted().is_err(),
            "nobody asks them"
        );
    }

    #[test]
    fn only_named_resolvers_are_trusted() {
        assert_eq!(read("{enabled: true}").trusted().unwrap(), None);
        let nobody = read("{upstream: original}").trusted().unwrap();
        assert_eq!(nobody, Some(BTreeSet::new()));
    }
}
