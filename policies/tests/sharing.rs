//! What objects have in common is kept once, and means the same.

mod random;
mod fixture;

use egret_policies::model::Shared;
use egret_policies::model::cluster::Entity;
use proptest::collection::vec;
use proptest::prelude::*;

use fixture::pod;
use random::entity;

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn an_object_of_shared_parts_is_the_same_object(entities in vec(entity(), 1..60)) {
        let mut shared = Shared::default();
        for entity in entities {
            prop_assert_eq!(&shared.entity(entity.clone()), &entity);
        }
    }
}

#[test]
fn what_no_object_has_any_more_is_forgotten() {
    let mut shared = Shared::default();
    let stays = shared.entity(Entity::Pod(pod("default/stays", "app=stays", &["10.0.0.1"])));
    for number in 0..50_000 {
        let labels = format!("app=a{number},version=v{number}");
        drop(shared.entity(Entity::Pod(pod("default/goes", &labels, &["10.0.0.2"]))));
    }
    assert!(shared.count() < 10_000, "{}", shared.count());
    let again = shared.entity(Entity::Pod(pod("default/again", "app=stays", &["10.0.0.3"])));
    let (Entity::Pod(one), Entity::Pod(other)) = (&stays, &again) else {
        panic!("pods stay pods")
    };
    let value = |pod: &egret_policies::model::cluster::Pod| pod.labels.get("app").map(str::as_ptr);
    assert_eq!(value(one), value(other), "one text");
}
