//! The zones with NXDOMAIN cuts.

use std::path::Path;

use super::{Invalid, zones as read};
use crate::config::model::{CutZone, Zone, ZoneKind};
use crate::dns::message::WireName;
use crate::upstream::search_domains;

/// The pod's file with the host's search domains, which the kubelet writes.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The value of `nxdomainCutSearch` for no file.
const NONE: &str = "none";

/// The cluster domains and the configured zones; none if it is turned off.
pub(super) fn zones(
    is_on: Option<bool>,
    further: Vec<String>,
    cluster_domains: &[Zone],
) -> Result<Vec<CutZone>, Invalid> {
    let further = read("nxdomainCutZones", further)?;
    if is_on == Some(false) && further.is_empty() {
        return Ok(Vec::new());
    }
    if is_on == Some(false) {
        return Err(Invalid::Contradiction(
            "nxdomainCutZones are zones of nxdomainCut, which is false",
        ));
    }
    // Below the root a whole top-level domain could be denied.
    if further.contains(&Zone::root()) {
        return Err(Invalid::Range {
            field: "nxdomainCutZones",
            value: ".".to_owned(),
            range: "a search domain such as ec2.internal".to_owned(),
        });
    }
    let of_cluster = cluster_domains.iter().map(|zone| CutZone {
        zone: *zone,
        kind: ZoneKind::Cluster,
    });
    let others = further.iter().filter(|zone| !cluster_domains.contains(zone));
    let others = others.map(|zone| CutZone {
        zone: *zone,
        kind: ZoneKind::Named,
    });
    Ok(of_cluster.chain(others).collect())
}

/// The host's search domains in which a cloud names its machines; none if it is turned off, or if the default file does
/// not exist.
pub(super) fn searched(is_on: Option<bool>, file: Option<&str>) -> Result<Vec<CutZone>, Invalid> {
    let path = file.unwrap_or(RESOLV_CONF);
    if is_on == Some(false) || path == NONE {
        return Ok(Vec::new());
    }
    let domains = match search_domains(Path::new(path)) {
        Ok(domains) => domains,
        Err(_not_there) if file.is_none() => Vec::new(),
        Err(error) => {
            return Err(Invalid::Range {
                field: "nxdomainCutSearch",
                value: format!("{path} ({error})"),
                range: format!("a file like {RESOLV_CONF}, or {NONE},"),
            });
        }
    };
    let of_clouds = domains.iter().filter(|domain| is_of_cloud(domain));
    let zones = of_clouds.filter_map(|domain| WireName::parse(domain).ok());
    Ok(zones
        .map(|apex| CutZone {
            zone: Zone::new(apex),
            kind: ZoneKind::Searched,
        })
        .collect())
}

/// Whether a cloud names machines in this domain, with one label, or with two of which one is a zone's. Nobody else has
/// names there, and none is below a public top-level label.
///
/// | cloud | search domain | names |
/// |---|---|---|
/// | AWS | `ec2.internal`, `REGION.compute.internal` | `ip-10-0-0-1`, `i-0123456789abcdef0` |
/// | Google | `ZONE.c.PROJECT.internal`, `c.PROJECT.internal`, `google.internal` | `vm`, `vm.ZONE`, `metadata` |
/// | Azure | `HASH.SHARD.internal.cloudapp.net` | `vm` |
fn is_of_cloud(domain: &str) -> bool {
    let domain = domain.trim_end_matches('.').to_ascii_lowercase();
    let labels: Vec<&str> = domain.split('.').collect();
    matches!(
        labels.as_slice(),
        ["ec2" | "google", "internal"]
            | [_, "compute", "internal"]
            | ["c", _, "internal"]
            | [_, "c", _, "internal"]
            | [_, _, "internal", "cloudapp", "net"]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Vec<Zone> {
        read("clusterDomains", vec!["cluster.local".to_owned()]).unwrap()
    }

    fn said(is_on: Option<bool>, further: &[&str]) -> Result<Vec<(String, bool)>, String> {
        let further = further.iter().map(ToString::to_string).collect();
        let zones = zones(is_on, further, &cluster()).map_err(|error| error.to_string())?;
        let said = zones
            .iter()
            .map(|zone| (zone.zone.to_string(), zone.kind == ZoneKind::Cluster));
        Ok(said.collect())
    }

    #[test]
    fn cluster_domains_and_configured_zones_have_cuts_unless_it_is_off() {
        let of_cluster = ("cluster.local.".to_owned(), true);
        let named = ("ec2.internal.".to_owned(), false);
        for (is_on, further, wanted) in [
            (None, &[][..], vec![of_cluster.clone()]),
            (
                Some(true),
                &["ec2.internal"],
                vec![of_cluster.clone(), named.clone()],
            ),
            (None, &["Cluster.Local.", "EC2.internal"], vec![of_cluster, named]),
            (Some(false), &[], vec![]),
        ] {
            assert_eq!(said(is_on, further), Ok(wanted), "{is_on:?} {further:?}");
        }
    }

    #[test]
    fn an_invalid_zone_is_refused_with_its_field() {
        for (is_on, further, wrong) in [
            (Some(false), "ec2.internal", "nxdomainCut, which is false"),
            (None, ".", "nxdomainCutZones"),
            (None, "a..b", "nxdomainCutZones"),
        ] {
            let error = said(is_on, &[further]).unwrap_err();
            assert!(error.contains(wrong), "{further}: {error}");
        }
    }

    /// The zones of a file with this text.
    fn searched_in(text: &str, is_on: Option<bool>) -> Vec<String> {
        let path = std::env::temp_dir().join(format!("egret-search-{}.conf", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let zones = searched(is_on, path.to_str()).unwrap();
        assert!(zones.iter().all(|zone| zone.kind == ZoneKind::Searched));
        std::fs::remove_file(&path).unwrap();
        zones.iter().map(|zone| zone.zone.to_string()).collect()
    }

    #[test]
    fn only_search_domains_of_clouds_have_cuts() {
        for (search, taken) in [
            ("ec2.internal", &["ec2.internal."][..]),
            ("EU-west-1.compute.internal.", &["eu-west-1.compute.internal."]),
            (
                "europe-west1-b.c.shop-1.internal c.shop-1.internal google.internal",
                &[
                    "europe-west1-b.c.shop-1.internal.",
                    "c.shop-1.internal.",
                    "google.internal.",
                ],
            ),
            (
                "x1y2.bx.internal.cloudapp.net",
                &["x1y2.bx.internal.cloudapp.net."],
            ),
            ("corp.example.com internal compute.internal lan .", &[]),
            ("a.b.compute.internal corp.internal ec2.internal.corp", &[]),
        ] {
            let file = format!("nameserver 10.0.0.2\nsearch {search}\n");
            assert_eq!(searched_in(&file, None), taken, "{search}");
            assert!(searched_in(&file, Some(false)).is_empty());
        }
    }

    #[test]
    fn none_reads_no_file_and_a_named_file_must_exist() {
        assert_eq!(searched(None, Some("none")).unwrap(), []);
        let error = searched(None, Some("/nowhere/resolv.conf"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("nxdomainCutSearch") && error.contains("none"),
            "{error}"
        );
    }
}
