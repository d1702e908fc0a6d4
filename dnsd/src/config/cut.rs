//! The zones in which names below a denied one are denied without asking.

use super::{Invalid, zones as read};
use crate::cut::CutZone;
use crate::plan::Zone;

/// Those of the cluster, and further ones that are named; none where it is off.
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
    // Everything is below the root: nobody could be asked to deny a whole top-level domain.
    if further.contains(&Zone::root()) {
        return Err(Invalid::Range {
            field: "nxdomainCutZones",
            value: ".".to_owned(),
            range: "a search domain such as ec2.internal".to_owned(),
        });
    }
    let of_cluster = cluster_domains.iter().map(|zone| CutZone {
        zone: *zone,
        is_of_cluster: true,
    });
    let others = further.iter().filter(|zone| !cluster_domains.contains(zone));
    let others = others.map(|zone| CutZone {
        zone: *zone,
        is_of_cluster: false,
    });
    Ok(of_cluster.chain(others).collect())
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
            .map(|zone| (zone.zone.to_string(), zone.is_of_cluster));
        Ok(said.collect())
    }

    #[test]
    fn the_cluster_s_zones_are_cut_and_those_that_are_named_unless_it_is_off() {
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
    fn what_cannot_be_meant_is_refused_with_its_field() {
        for (is_on, further, wrong) in [
            (Some(false), "ec2.internal", "nxdomainCut, which is false"),
            (None, ".", "nxdomainCutZones"),
            (None, "a..b", "nxdomainCutZones"),
        ] {
            let error = said(is_on, &[further]).unwrap_err();
            assert!(error.contains(wrong), "{further}: {error}");
        }
    }
}
