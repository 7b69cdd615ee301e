//! Which blocks of durable topics leave memory first: two lists over one table of nodes.
use crate::entry::TopicSlot;

/// Blocks in memory in the order they came: the tail's, and those read from disk.
#[derive(Debug, Default)]
pub(crate) struct TailList {
    nodes: Vec<Node>,
    free: Vec<u32>,
    tail: Ends,
    read: Ends,
    /// Charge of the tail's blocks, bytes.
    tail_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    last: u32,
}

impl Default for Ends {
    fn default() -> Ends {
        Ends {
            head: NONE,
            last: NONE,
        }
    }
}

const NONE: u32 = u32::MAX;

/// A block by its topic and first ordinal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) slot: TopicSlot,
    pub(crate) first: u64,
    charge: u64,
    is_read: bool,
    /// A reader has seen it.
    pub(crate) used: bool,
    /// When it was read, for blocks nobody comes for.
    pub(crate) since_ns: u64,
    prev: u32,
    next: u32,
}

impl TailList {
    /// Adds a frozen block of a durable topic's tail.
    pub(crate) fn push(&mut self, slot: TopicSlot, first: u64, charge: u64) -> u32 {
        self.tail_bytes += charge;
        self.add(Node {
            slot,
            first,
            charge,
            is_read: false,
            used: false,
            since_ns: 0,
            prev: NONE,
            next: NONE,
        })
    }

    /// Adds a block read from disk.
    pub(crate) fn push_read(&mut self, slot: TopicSlot, first: u64, now_ns: u64) -> u32 {
        self.add(Node {
            slot,
            first,
            charge: 0,
            is_read: true,
            used: false,
            since_ns: now_ns,
            prev: NONE,
            next: NONE,
        })
    }

    /// A reader has seen the block.
    #[inline]
    pub(crate) fn touch(&mut self, node: u32) {
        self.nodes[node as usize].used = true;
    }

    pub(crate) fn remove(&mut self, node: u32) {
        let Node {
            prev,
            next,
            charge,
            is_read,
            ..
        } = self.nodes[node as usize];
        if prev != NONE {
            self.nodes[prev as usize].next = next;
        }
        if next != NONE {
            self.nodes[next as usize].prev = prev;
        }
        let ends = if is_read {
            &mut self.read
        } else {
            &mut self.tail
        };
        if ends.head == node {
            ends.head = next;
        }
        if ends.last == node {
            ends.last = prev;
        }
        self.tail_bytes -= charge;
        self.free.push(node);
    }

    /// Charge of the tail's blocks, in bytes.
    pub(crate) fn tail_bytes(&self) -> u64 {
        self.tail_bytes
    }

    /// The oldest block of the tail.
    pub(crate) fn oldest_tail(&self) -> Option<Node> {
        (self.tail.head != NONE).then(|| self.nodes[self.tail.head as usize])
    }

    /// The oldest read block somebody has seen, else one that nobody came for since `before_ns`.
    pub(crate) fn oldest_read(&self, before_ns: u64) -> Option<Node> {
        let mut at = self.read.head;
        let mut forgotten = None;
        while at != NONE {
            let node = self.nodes[at as usize];
            if node.used {
                return Some(node);
            }
            if forgotten.is_none() && node.since_ns < before_ns {
                forgotten = Some(node);
            }
            at = node.next;
        }
        forgotten
    }

    fn add(&mut self, mut node: Node) -> u32 {
        let ends = if node.is_read {
            &mut self.read
        } else {
            &mut self.tail
        };
        node.prev = ends.last;
        let id = match self.free.pop() {
            Some(id) => {
                self.nodes[id as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        if ends.last == NONE {
            ends.head = id;
        } else {
            self.nodes[ends.last as usize].next = id;
        }
        ends.last = id;
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first_and_removal_from_the_middle_keeps_the_order() {
        let mut list = TailList::default();
        let nodes: Vec<u32> = (0..4)
            .map(|first| list.push(TopicSlot(0), first, 10))
            .collect();
        list.remove(nodes[1]);
        list.remove(nodes[0]);
        assert_eq!(list.oldest_tail().map(|node| node.first), Some(2));
        assert_eq!(list.tail_bytes(), 20);
        let again = list.push(TopicSlot(0), 9, 5);
        list.remove(nodes[2]);
        list.remove(nodes[3]);
        assert_eq!(list.oldest_tail().map(|node| node.first), Some(9));
        list.remove(again);
        assert!(list.oldest_tail().is_none());
        assert_eq!(list.tail_bytes(), 0);
    }

    #[test]
    fn read_blocks_that_were_seen_go_before_older_ones_nobody_came_for() {
        let mut list = TailList::default();
        list.push_read(TopicSlot(0), 1, 100);
        let second = list.push_read(TopicSlot(0), 2, 200);
        assert!(list.oldest_read(50).is_none());
        assert_eq!(list.oldest_read(150).map(|node| node.first), Some(1));
        list.touch(second);
        assert_eq!(list.oldest_read(150).map(|node| node.first), Some(2));
    }
}
