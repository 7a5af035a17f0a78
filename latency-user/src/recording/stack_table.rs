//! How stacks lie in a file: every distinct frame once, and of each stack the indices of its frames.
//! A hundred thousand stacks of one program have some hundred frames between them.
//!
//! Format version 1 was a list of stacks with their frames in full; it is still read.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::capped;
use super::off_cpu::{Frame, Stack};

/// At most this many stacks are in a recording.
pub const MAX_STACKS: usize = 256 << 10;
/// Distinct frames: far more than a program has places to call from.
const MAX_DISTINCT_FRAMES: usize = 4 << 20;
/// Frames of a stack: those of the user and of the kernel, and what was inlined.
const MAX_FRAMES: usize = 4096;
/// Frames of all stacks together, so that a small file cannot exhaust memory.
const MAX_ALL_FRAMES: usize = 32 << 20;

#[derive(Serialize)]
struct Table<'a> {
    frames: Vec<&'a Frame>,
    stacks: Vec<Indices<'a>>,
}

#[derive(Serialize)]
struct Indices<'a> {
    id: u64,
    frames: Vec<u32>,
    truncated: &'a Option<String>,
    used_frame_pointer: bool,
}

pub(super) fn serialize<'a, S: Serializer>(
    stacks: &'a [Stack],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    // Nearly all frames that are equal are one: the allocation is asked first.
    let (mut by_allocation, mut by_content) = (HashMap::new(), HashMap::new());
    let mut frames: Vec<&Frame> = Vec::new();
    let mut index_of = |frame: &'a Arc<Frame>| {
        *by_allocation.entry(Arc::as_ptr(frame)).or_insert_with(|| {
            let frame: &Frame = frame;
            *by_content.entry(frame).or_insert_with(|| {
                frames.push(frame);
                frames.len() as u32 - 1
            })
        })
    };
    let mut indexed = Vec::with_capacity(stacks.len());
    for stack in stacks {
        indexed.push(Indices {
            id: stack.id,
            frames: stack.frames.iter().map(&mut index_of).collect(),
            truncated: &stack.truncated,
            used_frame_pointer: stack.used_frame_pointer,
        });
    }
    Table { frames, stacks: indexed }.serialize(serializer)
}

/// The table as read.
#[derive(Deserialize)]
struct Read {
    #[serde(deserialize_with = "capped::vec::<MAX_DISTINCT_FRAMES, _, _>")]
    frames: Vec<Frame>,
    #[serde(deserialize_with = "capped::vec::<MAX_STACKS, _, _>")]
    stacks: Vec<ReadStack<u32>>,
}

#[derive(Deserialize)]
struct ReadStack<F> {
    id: u64,
    #[serde(
        bound(deserialize = "F: Deserialize<'de>"),
        deserialize_with = "capped::vec::<MAX_FRAMES, _, _>"
    )]
    frames: Vec<F>,
    truncated: Option<String>,
    used_frame_pointer: bool,
}

impl<F> ReadStack<F> {
    /// The stack with its frames, `left` of which may still come.
    fn with<E: Error>(
        self,
        left: &mut usize,
        mut frame: impl FnMut(F) -> Result<Arc<Frame>, E>,
    ) -> Result<Stack, E> {
        *left = left
            .checked_sub(self.frames.len())
            .ok_or_else(|| E::custom("the stacks have too many frames"))?;
        // Collected as a `Result`, they would be moved as they grow.
        let mut frames = Vec::with_capacity(self.frames.len());
        for read in self.frames {
            frames.push(frame(read)?);
        }
        Ok(Stack {
            id: self.id,
            frames,
            truncated: self.truncated,
            used_frame_pointer: self.used_frame_pointer,
        })
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Stack>, D::Error> {
    deserializer.deserialize_any(EitherVersion)
}

struct EitherVersion;

impl<'de> Visitor<'de> for EitherVersion {
    type Value = Vec<Stack>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("frames and stacks, or a list of stacks")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let Read { frames, stacks } = Read::deserialize(MapAccessDeserializer::new(map))?;
        let frames: Vec<_> = frames.into_iter().map(Arc::new).collect();
        let frame = |index: u32| {
            let frame = frames.get(index as usize).cloned();
            frame.ok_or_else(|| A::Error::custom("a stack names a frame that does not exist"))
        };
        let mut left = MAX_ALL_FRAMES;
        stacks.into_iter().map(|stack| stack.with(&mut left, frame)).collect()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let (mut stacks, mut known, mut left) = (Vec::new(), HashMap::new(), MAX_ALL_FRAMES);
        while let Some(stack) = list.next_element::<ReadStack<Frame>>()? {
            if stacks.len() == MAX_STACKS {
                return Err(A::Error::custom("a recording has too many stacks"));
            }
            stacks.push(stack.with(&mut left, |frame| {
                let shared = match known.get(&frame) {
                    Some(shared) => Arc::clone(shared),
                    None => {
                        let shared = Arc::new(frame.clone());
                        known.insert(frame, Arc::clone(&shared));
                        shared
                    }
                };
                Ok(shared)
            })?);
        }
        Ok(stacks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    struct Holder {
        #[serde(with = "super")]
        stacks: Vec<Stack>,
    }

    fn stack(id: u64, addresses: &[u64]) -> Stack {
        let frame = |&address| Arc::new(Frame { address, ..Frame::default() });
        Stack { id, frames: addresses.iter().map(frame).collect(), ..Stack::default() }
    }

    fn read(json: &str) -> Result<Vec<Stack>, String> {
        let read: Result<Holder, _> = serde_json::from_str(&format!("{{\"stacks\":{json}}}"));
        read.map(|holder| holder.stacks).map_err(|error| error.to_string())
    }

    /// Check that equal frames lie in the file once, and are one again when it was read.
    #[test]
    fn frames_once() {
        let stacks = vec![stack(7, &[1, 2, 3]), stack(8, &[4, 2, 3]), stack(9, &[])];
        let json = serde_json::to_value(Holder { stacks: stacks.clone() }).unwrap();
        assert_eq!(json["stacks"]["frames"].as_array().unwrap().len(), 4);
        assert_eq!(json["stacks"]["stacks"][1]["frames"], serde_json::json!([3, 1, 2]));
        let again: Holder = serde_json::from_value(json).unwrap();
        assert_eq!(again.stacks, stacks);
        assert!(Arc::ptr_eq(&again.stacks[0].frames[1], &again.stacks[1].frames[1]));
    }

    /// Check that the list of format version 1 is read, and equal frames are one.
    #[test]
    fn version_1() {
        let frame = r#"{"address":5,"function":"f","module":"m","module_address":6}"#;
        let stack = |id: u64| {
            format!(r#"{{"id":{id},"frames":[{frame}],"truncated":"x","used_frame_pointer":true}}"#)
        };
        let stacks = read(&format!("[{},{}]", stack(1), stack(2))).unwrap();
        assert_eq!((stacks.len(), stacks[1].frames[0].function.as_deref()), (2, Some("f")));
        assert_eq!(
            (stacks[0].truncated.as_deref(), stacks[0].used_frame_pointer),
            (Some("x"), true)
        );
        assert!(Arc::ptr_eq(&stacks[0].frames[0], &stacks[1].frames[0]));
    }

    /// Check that an index of no frame, and more frames than fit into memory, are errors.
    #[test]
    fn bad_tables() {
        let indices = |text: &str| {
            format!(
                r#"{{"frames":[],"stacks":[{{"id":1,"frames":[{text}],"truncated":null,
                "used_frame_pointer":false}}]}}"#
            )
        };
        assert_eq!(read(&indices("")).unwrap().len(), 1);
        assert!(read(&indices("0")).unwrap_err().contains("does not exist"));
        assert!(read(&indices(&vec!["0"; MAX_FRAMES + 1].join(","))).is_err());
        let mut left = 1;
        let too_many =
            ReadStack { id: 1, frames: vec![0, 0], truncated: None, used_frame_pointer: false }
                .with(&mut left, |_: u32| Ok::<_, serde_json::Error>(Arc::default()));
        assert!(too_many.unwrap_err().to_string().contains("too many frames"));
    }
}
