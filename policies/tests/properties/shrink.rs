//! Makes the story of a difference small: leaves out whatever the difference does not need.

use serde_json::Value;

use crate::scenario::{Flow, Scenario, Step};

/// The smallest story that is found of which this still holds.
pub(crate) fn shrink(
    mut story: Scenario,
    flow: Option<Box<Flow>>,
    is_bad: impl Fn(&Scenario) -> bool,
) -> Scenario {
    if let Some(flow) = flow {
        let alone = Scenario {
            flows: vec![*flow],
            ..story.clone()
        };
        if is_bad(&alone) {
            story = alone;
        }
    }
    loop {
        let size = size_of(&story);
        story = without(
            story,
            |story| story.flows.len(),
            |story, at| drop(story.flows.remove(at)),
            &is_bad,
        );
        story = without(
            story,
            |story| story.steps.len(),
            |story, at| drop(story.steps.remove(at)),
            &is_bad,
        );
        for step in 0..story.steps.len() {
            story = smaller_object(story, step, &is_bad);
        }
        if size_of(&story) == size {
            return story;
        }
    }
}

fn size_of(story: &Scenario) -> usize {
    story.to_file("").len()
}

/// Leaves out items one by one, from the last on.
fn without(
    mut story: Scenario,
    length: impl Fn(&Scenario) -> usize,
    remove: impl Fn(&mut Scenario, usize),
    is_bad: &impl Fn(&Scenario) -> bool,
) -> Scenario {
    for at in (0..length(&story)).rev() {
        let mut smaller = story.clone();
        remove(&mut smaller, at);
        if is_bad(&smaller) {
            story = smaller;
        }
    }
    story
}

/// Leaves fields and items out of an object.
fn smaller_object(mut story: Scenario, step: usize, is_bad: &impl Fn(&Scenario) -> bool) -> Scenario {
    let mut at = 0;
    loop {
        let mut smaller = story.clone();
        let Step::Apply(object) = &mut smaller.steps[step] else {
            return story;
        };
        let mut left = at;
        if !remove_nth(object, &mut left, true) {
            return story;
        }
        if is_bad(&smaller) {
            story = smaller;
        } else {
            at += 1;
        }
    }
}

/// Takes out the n-th field or item, counted through the tree; whether there was one. What makes an object one
/// stays.
fn remove_nth(value: &mut Value, left: &mut usize, is_root: bool) -> bool {
    match value {
        Value::Object(fields) => {
            let keys: Vec<String> = fields.keys().cloned().collect();
            for key in keys {
                let stays = (is_root && matches!(key.as_str(), "apiVersion" | "kind" | "metadata"))
                    || matches!(key.as_str(), "name" | "namespace");
                if !stays {
                    if *left == 0 {
                        fields.remove(&key);
                        return true;
                    }
                    *left -= 1;
                }
                if fields
                    .get_mut(&key)
                    .is_some_and(|value| remove_nth(value, left, false))
                {
                    return true;
                }
            }
            false
        }
        Value::Array(items) => {
            for at in 0..items.len() {
                if *left == 0 {
                    items.remove(at);
                    return true;
                }
                *left -= 1;
                if remove_nth(&mut items[at], left, false) {
                    return true;
                }
            }
            false
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
