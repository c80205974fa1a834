//! Validates the levels that the requests of all signals share, resource groups and scope groups,
//! and passes each item to its reader.

use super::schema::{FieldKind, RESOURCE, SCOPE, Schema};
use crate::wire::otlp::{request, resource_group, scope_group};
use crate::wire::{Cursor, Fault, LEN, RECURSION_LIMIT, enter, key};

pub(crate) struct RequestLevels {
    request: Level,
    resource_group: Level,
    scope_group: Level,
}

/// A message that encloses the items. One field contains the next level; all other fields are only
/// validated.
struct Level {
    fields: Schema,
    path: u64,
    path_name: &'static str,
}

/// Reads the spans, log records or metrics of a request.
pub(crate) trait ItemReader<'b> {
    fn resource_group(&mut self, _group: &'b [u8]) {}

    fn scope_group(&mut self, _group: &'b [u8]) {}

    /// Validates and reads an item, which may contain `depth` further levels of nesting.
    fn item(&mut self, item: &'b [u8], depth: u32) -> Result<(), Fault>;
}

impl<'b, F: FnMut(&'b [u8], u32) -> Result<(), Fault>> ItemReader<'b> for F {
    fn item(&mut self, item: &'b [u8], depth: u32) -> Result<(), Fault> {
        self(item, depth)
    }
}

impl RequestLevels {
    /// Creates the levels with the signal's names for the nested fields.
    pub(crate) const fn new(
        resource_groups: &'static str,
        scope_groups: &'static str,
        items: &'static str,
    ) -> Self {
        Self {
            request: Level {
                fields: Schema::new([(
                    request::RESOURCE_GROUPS,
                    resource_groups,
                    FieldKind::Bytes,
                )]),
                path: key(request::RESOURCE_GROUPS, LEN),
                path_name: resource_groups,
            },
            resource_group: Level {
                fields: Schema::new([
                    (
                        resource_group::RESOURCE,
                        "resource",
                        FieldKind::Message(&RESOURCE),
                    ),
                    (resource_group::SCOPE_GROUPS, scope_groups, FieldKind::Bytes),
                    (resource_group::SCHEMA_URL, "schema_url", FieldKind::Str),
                ]),
                path: key(resource_group::SCOPE_GROUPS, LEN),
                path_name: scope_groups,
            },
            scope_group: Level {
                fields: Schema::new([
                    (scope_group::SCOPE, "scope", FieldKind::Message(&SCOPE)),
                    (scope_group::ITEMS, items, FieldKind::Bytes),
                    (scope_group::SCHEMA_URL, "schema_url", FieldKind::Str),
                ]),
                path: key(scope_group::ITEMS, LEN),
                path_name: items,
            },
        }
    }

    /// Validates a request and passes its items to `reader`, which validates them.
    pub(crate) fn walk<'b>(
        &self,
        body: &'b [u8],
        reader: &mut impl ItemReader<'b>,
    ) -> Result<(), Fault> {
        self.request
            .walk(body, RECURSION_LIMIT, &mut |group, depth| {
                reader.resource_group(group);
                self.resource_group.walk(group, depth, &mut |group, depth| {
                    reader.scope_group(group);
                    self.scope_group
                        .walk(group, depth, &mut |item, depth| reader.item(item, depth))
                })
            })
    }
}

impl Level {
    fn walk<'b>(
        &self,
        bytes: &'b [u8],
        depth: u32,
        below: &mut impl FnMut(&'b [u8], u32) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut cursor = Cursor::new(bytes);
        while !cursor.is_empty() {
            let found = cursor.varint()?;
            if found == self.path {
                let bytes = cursor.delimited()?;
                below(bytes, enter(depth, bytes)?).map_err(|fault| fault.within(self.path_name))?;
            } else {
                self.fields.check_field(found, &mut cursor, depth)?;
            }
        }
        Ok(())
    }
}
