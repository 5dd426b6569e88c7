// The folders of a store, which docs/store-format.md describes: for who looks at them without opening it.
#pragma once

namespace rekindle::store {

inline constexpr const char* kFolders[] = {"packs", "index", "catalog", "notes", "tmp"};

}  // namespace rekindle::store
