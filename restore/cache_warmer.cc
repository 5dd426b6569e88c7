#include "restore/cache_warmer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace rekindle::restore {
namespace {

// Of the cache, that may be taken by what was used before: the rest is for what is used now.
constexpr uint64_t kWarmedPart = 2;

// Those of `more` that are not there yet, up to `most`.
template <typename T>
void Append(const std::vector<T>& more, size_t most, std::vector<T>* list) {
  absl::flat_hash_set<T> there(list->begin(), list->end());
  for (const T& entry : more) {
    if (list->size() >= most) return;
    if (there.insert(entry).second) list->push_back(entry);
  }
}

}  // namespace

void CacheWarmer::Warm(const OpenImage& open, const std::function<bool()>& go_on) {
  auto list = ReadHotList(store_);
  if (!list.ok() && !absl::IsNotFound(list.status())) {
    Log(LogLevel::kWarning, absl::StrCat("the cache of the pager of ", store_,
                                         " begins empty: ", list.status().message(), "; it is written anew"));
  }
  if (list.ok()) {
    {
      absl::MutexLock lock(&mutex_);
      found_ = *list;
    }
    std::vector<store::FrameId> left = list->frames;
    for (const std::string& image : list->images) {
      if (left.empty() || !go_on()) break;
      auto reader = open(image);
      if (!reader.ok()) continue;  // it was removed
      cache_.Warm(**reader, left, cache_.Stats().budget_bytes / kWarmedPart, go_on);
      left.erase(std::remove_if(left.begin(), left.end(),
                                [&](store::FrameId frame) { return (*reader)->FramePages(frame) > 0; }),
                 left.end());
    }
  }
  warming_ = false;
}

void CacheWarmer::Save(const std::vector<std::string>& images) {
  const FrameCacheStats stats = cache_.Stats();
  absl::MutexLock lock(&mutex_);
  // Who has used nothing knows no better than the list that is there.
  if (stats.hits + stats.misses == uses_saved_) return;
  HotList list;
  Append(images, HotList::kMostImages, &list.images);
  Append(found_.images, HotList::kMostImages, &list.images);
  list.frames = cache_.HotList(HotList::kMostFrames);
  // What there was no time for yet.
  if (warming_) Append(found_.frames, HotList::kMostFrames, &list.frames);
  absl::Status written = WriteHotList(store_, list);
  if (written.ok()) {
    uses_saved_ = stats.hits + stats.misses;
  } else if (!std::exchange(complained_, true)) {
    Log(LogLevel::kWarning,
        absl::StrCat("the next pager will begin with an empty cache: ", written.message()));
  }
}

}  // namespace rekindle::restore
