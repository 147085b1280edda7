# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
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
