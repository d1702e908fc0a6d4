//! The chart is upgraded to another build and rolled back, while pods query and connect.

use super::{
    Failure,
    image::OTHER_BUILD,
    story::{Story, WORKLOADS},
};

/// Answered queries before and after each change.
const QUERIES: usize = 400;

pub(super) fn play(story: &mut Story<'_>) -> Result<(), Failure> {
    let traffic = story.traffic(true)?;
    story.more_traffic(&traffic, QUERIES)?;
    let upgrade = format!(
        "upgrade egret deploy/helm/egret --namespace kube-system --reuse-values --set image.repository={OTHER_BUILD}"
    );
    for (title, command) in [
        ("Another build, while pods query and connect", &*upgrade),
        ("Back again", "rollback egret --namespace kube-system"),
    ] {
        story.screen.heading(title);
        story.helm(command)?;
        story.roll_out(&WORKLOADS)?;
        let seen = story.more_traffic(&traffic, QUERIES)?;
        story.screen.line(&images(story)?);
        story.conclude(seen.is_clean(), &seen.to_string());
    }
    let seen = traffic.stop();
    story.conclude(seen.is_clean(), &format!("in the end: {seen}"));
    Ok(())
}

/// Of Egret's pods that run.
fn images(story: &Story<'_>) -> Result<String, Failure> {
    let images = story.kubectl.get(&[
        "pods",
        "-A",
        "-l",
        "app.kubernetes.io/name in (egret-enforcer,egret-dnsd,egret-controller)",
        "-o",
        "jsonpath={range .items[*]}{.spec.containers[0].image}{\"\\n\"}{end}",
    ])?;
    let mut images = images.lines().collect::<Vec<_>>();
    images.sort_unstable();
    let pods = images.len();
    images.dedup();
    Ok(format!("{pods} pods run {}", images.join(", ")))
}
