# SPDX-License-Identifier: Apache-2.0
# Sourced by recipes whose folder holds what was made with one choice of settings.

# keep_settings WHAT SETTINGS: write OUT/settings.txt; refuse a folder that holds WHAT ("a run") with other settings.
keep_settings() {
  if [[ ! -f "$OUT/settings.txt" ]]; then
    printf '%s\n' "$2" > "$OUT/settings.txt.new"
    mv "$OUT/settings.txt.new" "$OUT/settings.txt"
  elif [[ "$(cat "$OUT/settings.txt")" != "$2" ]]; then
    echo "$OUT holds $1 with other settings (settings.txt); choose another OUT or delete that folder:" >&2
    diff "$OUT/settings.txt" - <<< "$2" >&2 || exit 2
  fi
}
