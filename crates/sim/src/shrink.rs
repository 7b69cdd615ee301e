//! Makes a failing list of steps short (Zeller and Hildebrandt, delta debugging, IEEE TSE 2002).

/// The shortest list found by dropping stretches, long ones first, for which `fails` still holds. It is
/// called last with the list that is returned, unless nothing could be dropped.
pub(crate) fn shortest<T: Clone>(steps: Vec<T>, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut steps = steps;
    let mut stretch = steps.len().div_ceil(2);
    while stretch > 0 {
        let mut dropped = false;
        let mut at = 0;
        while at < steps.len() {
            let mut without = steps[..at].to_vec();
            without.extend_from_slice(&steps[(at + stretch).min(steps.len())..]);
            if fails(&without) {
                steps = without;
                dropped = true;
            } else {
                at += stretch;
            }
        }
        // A pass of single steps is repeated until none can go.
        if stretch > 1 || !dropped {
            stretch /= 2;
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::shortest;

    #[test]
    fn only_what_the_failure_needs_is_left() {
        let mut tries = 0;
        let needed = [17, 400, 401, 999];
        let found = shortest((0..1_000).collect(), |steps: &[i32]| {
            tries += 1;
            needed.iter().all(|step| steps.contains(step))
        });
        assert_eq!(found, needed);
        assert!(tries < 200, "{tries} tries");
    }
}
