#include "cli/bucket_images.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace rekindle::cli {
namespace {

constexpr size_t kIdDigits = 32, kMostLinks = 16;
constexpr absl::string_view kImage = ".image", kJson = ".json", kWhole = "whole";
constexpr absl::string_view kCreatedFormat = "%E4Y%m%dT%H%M%E6SZ";
constexpr size_t kCreatedLength = sizeof("20261127T231500.123456Z") - 1;

std::string StemOf(const BucketImage& image) {
  return absl::StrCat(
      absl::FormatTime(kCreatedFormat, absl::FromUnixNanos(image.created_unix_ns), absl::UTCTimeZone()), "-",
      image.origin, "-", image.base.empty() ? kWhole : image.base, "-", image.tag);
}

bool TakeId(absl::string_view* text, std::string* id) {
  if (text->size() < kIdDigits ||
      !std::all_of(text->begin(), text->begin() + kIdDigits, absl::ascii_isxdigit))
    return false;
  *id = std::string(text->substr(0, kIdDigits));
  text->remove_prefix(kIdDigits);
  return absl::ConsumePrefix(text, "-");
}

std::optional<BucketImage> Parse(absl::string_view stem) {
  BucketImage image;
  absl::Time created;
  std::string error;
  absl::string_view left = stem;
  if (left.size() < kCreatedLength ||
      !absl::ParseTime(kCreatedFormat, left.substr(0, kCreatedLength), &created, &error)) {
    return std::nullopt;
  }
  left.remove_prefix(kCreatedLength);
  image.created_unix_ns = absl::ToUnixNanos(created);
  if (!absl::ConsumePrefix(&left, "-") || !TakeId(&left, &image.origin)) return std::nullopt;
  if (!absl::ConsumePrefix(&left, absl::StrCat(kWhole, "-")) && !TakeId(&left, &image.base))
    return std::nullopt;
  image.tag = std::string(left);
  // Whatever is not written as we write it is somebody else's.
  if (left.empty() || StemOf(image) != stem) return std::nullopt;
  return image;
}

}  // namespace

std::string BucketImage::ImageObject() const { return absl::StrCat(StemOf(*this), kImage); }
std::string BucketImage::JsonObject() const { return absl::StrCat(StemOf(*this), kJson); }

std::string IdOf(absl::string_view origin) {
  absl::ConsumePrefix(&origin, "sha256:");
  return std::string(origin.substr(0, kIdDigits));
}

BucketImages::BucketImages(const std::vector<BucketObject>& objects) {
  struct Seen {
    std::optional<uint64_t> bytes;
    bool json = false;
  };
  std::map<std::string, Seen> stems;
  for (const BucketObject& object : objects) {
    absl::string_view name = object.name;
    if (absl::ConsumeSuffix(&name, kImage)) {
      stems[std::string(name)].bytes = object.bytes;
    } else if (absl::ConsumeSuffix(&name, kJson)) {
      stems[std::string(name)].json = true;
    }
  }
  for (const auto& [stem, seen] : stems) {
    std::optional<BucketImage> image = Parse(stem);
    if (!image) continue;
    image->bytes = seen.bytes.value_or(0);
    (seen.bytes && seen.json ? complete_ : incomplete_).push_back(*std::move(image));
  }
  std::stable_sort(complete_.begin(), complete_.end(), [](const BucketImage& a, const BucketImage& b) {
    return a.created_unix_ns > b.created_unix_ns;
  });
}

std::vector<BucketImage> BucketImages::Chain(absl::string_view id) const {
  std::vector<BucketImage> chain;
  std::string wanted(id);
  while (chain.size() < complete_.size()) {
    const BucketImage* found = nullptr;
    for (const BucketImage& image : complete_) {
      // Of one that is there twice, the shorter way.
      if (image.origin == wanted && (found == nullptr || image.base.empty())) found = &image;
    }
    if (found == nullptr) return {};
    chain.push_back(*found);
    if (found->base.empty()) {
      std::reverse(chain.begin(), chain.end());
      return chain;
    }
    wanted = found->base;
  }
  return {};
}

bool BucketImages::Has(absl::string_view id, absl::string_view tag) const {
  const bool named = std::any_of(complete_.begin(), complete_.end(), [&](const BucketImage& image) {
    return image.origin == id && image.tag == tag;
  });
  return named && !Chain(id).empty();
}

const BucketImage* BucketImages::Newest(absl::string_view tag) const {
  for (const BucketImage& image : complete_) {
    if ((tag.empty() || image.tag == tag) && !Chain(image.origin).empty()) return &image;
  }
  return nullptr;
}

bool BucketImages::MayBuildUpon(absl::string_view id) const {
  const std::vector<BucketImage> chain = Chain(id);
  if (chain.empty() || chain.size() >= kMostLinks) return false;
  uint64_t since = 0;
  for (size_t i = 1; i < chain.size(); ++i) since += chain[i].bytes;
  return since <= chain.front().bytes;
}

std::vector<std::string> BucketImages::Superfluous(
    size_t keep, const std::function<bool(const std::string& id)>& ours) const {
  std::set<std::string> needed;
  size_t kept = 0;
  for (const BucketImage& image : complete_) {
    if (ours(image.origin) && (Chain(image.origin).empty() || kept++ >= keep)) continue;
    needed.insert(image.JsonObject());
    for (const BucketImage& link : Chain(image.origin)) needed.insert(link.JsonObject());
  }
  std::vector<std::string> markers, images;
  for (const BucketImage& image : complete_) {
    if (needed.contains(image.JsonObject()) || !ours(image.origin)) continue;
    markers.push_back(image.JsonObject());
    images.push_back(image.ImageObject());
  }
  for (const BucketImage& image : incomplete_) {
    if (!ours(image.origin)) continue;
    markers.push_back(image.JsonObject());
    images.push_back(image.ImageObject());
  }
  markers.insert(markers.end(), images.begin(), images.end());
  return markers;
}

std::vector<std::string> BucketImages::Tags() const {
  std::vector<std::string> tags;
  for (const BucketImage& image : complete_) {
    const bool known = std::find(tags.begin(), tags.end(), image.tag) != tags.end();
    if (!known && !Chain(image.origin).empty()) tags.push_back(image.tag);
  }
  return tags;
}

}  // namespace rekindle::cli
