//! The values on which two kinds of calls must agree, as numbers. The numbers of a path are
//! kept, since rules often share their paths. Knows no order.

use smallvec::SmallVec;

use crate::evaluate::comparison::agreement::{CallKey, Combinations, MAX_NUMBERS, Numbering};
use crate::evaluate::comparison::captured::{CapturedValues, Known, Tri};
use crate::evaluate::parameters::same::{Same, ValuePath};
use crate::extract::equality;

/// Most paths whose numbers are kept from one rule to the next.
const MAX_PATHS: usize = 16;

/// The values that both kinds of calls must agree on, for each call.
#[derive(Default)]
pub(crate) struct PairKeys {
    /// `None` where no values must agree.
    keys: Option<Keys>,
    /// There were too many values to compare.
    pub(crate) too_many: bool,
    /// The paths that lead to no value in any call of their kind: whether it is the second kind,
    /// and the position in `same`.
    pub(crate) nowhere: Vec<(bool, usize)>,
}

struct Keys {
    certain: [Vec<CallKey>; 2],
    /// Without the paths of which no value is known; `None` if all values are known.
    possible: Option<[Vec<CallKey>; 2]>,
    /// Whether some path has no known value, so that no calls agree for certain.
    has_dropped: bool,
}

/// The numbers of the values that were read so far, by path.
#[derive(Default)]
pub(crate) struct ReadPaths<'a> {
    numbering: Numbering<'a>,
    paths: Vec<ReadPath>,
}

struct ReadPath {
    path: ValuePath,
    /// By call; `None` where no rule asked for it.
    found: Vec<Option<Found>>,
    /// How many values may still be read.
    n_left: usize,
    too_many: bool,
}

/// The values of a call at a path.
enum Found {
    Unknown,
    /// Numbers, rising.
    Known(SmallVec<[u32; 1]>),
}

impl<'a> ReadPaths<'a> {
    /// Reads a path of the calls that fit; the position of the path in `paths`.
    fn read(&mut self, path: &ValuePath, fits: &[Tri], captured: &mut CapturedValues<'a>) -> usize {
        let known = self.paths.iter().position(|read| read.path == *path);
        let at = known.unwrap_or_else(|| {
            self.paths.push(ReadPath {
                path: path.clone(),
                found: fits.iter().map(|_| None).collect(),
                n_left: MAX_NUMBERS,
                too_many: false,
            });
            self.paths.len() - 1
        });
        let read = &mut self.paths[at];
        for (call_idx, fit) in fits.iter().enumerate() {
            if *fit > Tri::No && read.found[call_idx].is_none() {
                read.found[call_idx] = Some(read.of_call(call_idx, &mut self.numbering, captured));
            }
        }
        at
    }

    /// Forgets all paths once there are many.
    fn make_room(&mut self) {
        if self.paths.len() > MAX_PATHS || self.numbering.len() > MAX_NUMBERS {
            *self = Self::default();
        }
    }
}

impl ReadPath {
    fn of_call<'a>(
        &mut self,
        call_idx: usize,
        numbering: &mut Numbering<'a>,
        captured: &mut CapturedValues<'a>,
    ) -> Found {
        let value = match self.path.of_result {
            true => captured.result_json(call_idx),
            false => captured.args(call_idx),
        };
        let values = match value {
            Known::Value(value) => self.path.values(value),
            Known::None => SmallVec::new(),
            Known::Unknown => return Found::Unknown,
        };
        if !values.iter().copied().all(equality::is_comparable) {
            captured.note_incomparable(call_idx);
            return Found::Unknown;
        }
        if values.len() > self.n_left {
            self.too_many = true;
            return Found::Unknown;
        }
        self.n_left -= values.len();
        let numbers = values.into_iter().map(|value| numbering.of_value(value));
        let mut numbers: SmallVec<[u32; 1]> = numbers.collect();
        numbers.sort_unstable();
        numbers.dedup();
        Found::Known(numbers)
    }
}

impl PairKeys {
    /// Reads the values of the calls that fit.
    pub(crate) fn new<'a>(
        same: &[Same],
        fits: [&[Tri]; 2],
        read_paths: &mut ReadPaths<'a>,
        captured: &mut CapturedValues<'a>,
    ) -> Self {
        if same.is_empty() {
            return Self::default();
        }
        read_paths.make_room();
        let mut read = |side: usize, path: fn(&Same) -> &ValuePath| -> Vec<usize> {
            let places = same
                .iter()
                .map(|same| read_paths.read(path(same), fits[side], captured));
            places.collect()
        };
        let places = [read(0, |same| &same.a), read(1, |same| &same.b)];
        let path_of = |side: usize, path: usize| &read_paths.paths[places[side][path]];
        let found =
            |side: usize, path: usize, call: usize| path_of(side, path).found[call].as_ref();
        let mut is_read = vec![[false; 2]; same.len()];
        let (mut has_unknown, mut too_many) = (false, false);
        let mut nowhere = Vec::new();
        for side in 0..2 {
            for (path, is_read) in is_read.iter_mut().enumerate() {
                too_many |= path_of(side, path).too_many;
                let fitting = (0..fits[side].len()).filter(|call| fits[side][*call] > Tri::No);
                let (mut n_fitting, mut n_without) = (0, 0);
                for call in fitting {
                    let found = found(side, path, call);
                    let is_known = matches!(found, Some(Found::Known(_)));
                    is_read[side] |= is_known;
                    has_unknown |= !is_known;
                    n_fitting += 1;
                    let has_none =
                        matches!(found, Some(Found::Known(of_path)) if of_path.is_empty());
                    n_without += usize::from(has_none);
                }
                if n_fitting > 0 && n_without == n_fitting {
                    nowhere.push((side == 1, path));
                }
            }
        }
        let is_dropped: Vec<bool> = is_read.iter().map(|read| *read != [true; 2]).collect();
        let mut keys_over = |is_used: &dyn Fn(usize) -> bool| {
            let mut combinations = Combinations::default();
            [0, 1].map(|side| {
                let key = |(call, fit): (usize, &Tri)| {
                    if *fit == Tri::No {
                        return CallKey::none();
                    }
                    let mut lists: SmallVec<[&[u32]; 4]> = SmallVec::new();
                    let mut is_known = true;
                    for path in 0..same.len() {
                        match found(side, path, call) {
                            // It agrees with no other call, whatever else it has.
                            Some(Found::Known(numbers)) if numbers.is_empty() => {
                                return CallKey::none();
                            }
                            Some(Found::Known(numbers)) if is_used(path) => lists.push(numbers),
                            Some(Found::Unknown) if is_used(path) => is_known = false,
                            _ => {}
                        }
                    }
                    if !is_known {
                        return CallKey::Unknown;
                    }
                    let key = combinations.key(&lists);
                    too_many |= !key.is_known();
                    key
                };
                fits[side].iter().enumerate().map(key).collect::<Vec<_>>()
            })
        };
        let certain = keys_over(&|_| true);
        let possible = has_unknown.then(|| keys_over(&|path| !is_dropped[path]));
        Self {
            keys: Some(Keys {
                certain,
                possible,
                has_dropped: has_unknown && is_dropped.contains(&true),
            }),
            too_many,
            nowhere,
        }
    }

    pub(crate) fn has_unknown(&self) -> bool {
        (self.keys.as_ref()).is_some_and(|keys| keys.possible.is_some() || self.too_many)
    }

    /// Is it certain that no calls agree?
    pub(crate) fn agree_on_nothing(&self) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.has_dropped)
    }

    /// The keys of one side's calls, for certain or perhaps; `None` where no values must agree.
    pub(crate) fn of_side(&self, side: usize, perhaps: bool) -> Option<&[CallKey]> {
        let keys = self.keys.as_ref()?;
        Some(match (&keys.possible, perhaps) {
            (Some(possible), true) => &possible[side],
            _ => &keys.certain[side],
        })
    }
}
