# shellcheck shell=bash
# Sourced, not run: packs files so that equal files give equal bytes, whoever packs them, when and where.
pack() { # ARCHIVE TIME FOLDER NAME…: the files of these names in the folder, and options of tar
  local archive=$1 time=$2 folder=$3 tar compress=cat
  shift 3
  # macOS has its own tar, and GNU's by this name.
  tar=$(command -v gtar || command -v tar)
  [[ $archive != *gz ]] || compress='gzip -9n'
  "$tar" --sort=name --format=gnu --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX --mtime="@$time" -C "$folder" -c "$@" | $compress >"$archive"
}
