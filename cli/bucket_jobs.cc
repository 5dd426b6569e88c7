#include "cli/bucket_jobs.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/status.h"
#include "cli/copy_source.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {
namespace {

using MarkerJson = nlohmann::json;

constexpr size_t kManyMarkers = 1000;

// As far as it tells whose it is. What is no such object tells nothing.
v1::Image ImageIn(const MarkerJson& marker) {
  const MarkerJson image = marker.is_object() ? marker.value("image", MarkerJson()) : MarkerJson();
  MarkerJson known = MarkerJson::object();
  for (const char* key : {"reference", "digest", "labels"}) {
    if (image.is_object() && image.contains(key)) known[key] = image[key];
  }
  v1::Image read;
  return google::protobuf::util::JsonStringToMessage(known.dump(), &read).ok() ? read : v1::Image();
}

}  // namespace

std::vector<v1::Image> ImagesOfMarkers(absl::string_view markers) {
  // No string in JSON has these characters.
  constexpr absl::string_view kBegin = R"({"image":)";
  std::vector<v1::Image> images;
  std::istringstream in{std::string(markers)};
  for (MarkerJson marker; !(in >> std::ws).eof();) {
    const auto at = static_cast<size_t>(in.tellg());
    try {
      in >> marker;
    } catch (const MarkerJson::exception&) {
      const size_t next = markers.find(kBegin, at + 1);
      if (next == absl::string_view::npos) break;
      in.clear();
      in.seekg(static_cast<std::streamoff>(next));
      continue;
    }
    images.push_back(ImageIn(marker));
  }
  return images;
}

BucketKey KeyOf(const BucketImage& image) { return {image.origin, image.tag}; }
BucketKey KeyOf(const v1::Image& image) { return {IdOf(OriginOf(image)), TagOf(image.reference())}; }

absl::Status BucketMarkers::Read(Bucket& bucket, const std::string& name,
                                 const std::vector<BucketImage>& images, size_t most) {
  std::set<BucketKey> asked;
  std::vector<std::string> markers;
  for (const BucketImage& image : images) {
    const BucketKey key = KeyOf(image);
    if (IsStrayLink(image) || known_.contains(key) || in_vain_.contains(key) || markers.size() == most)
      continue;
    if (asked.insert(key).second) markers.push_back(image.JsonObject());
  }
  if (markers.empty()) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(const std::string said, bucket.Read(name, markers));
  for (v1::Image& image : ImagesOfMarkers(said)) {
    // What they say of themselves counts for nothing else.
    const BucketKey key = KeyOf(image);
    if (asked.erase(key) != 0) known_[key] = std::move(image);
  }
  in_vain_.merge(asked);
  return absl::OkStatus();
}

void BucketMarkers::Keep(const std::vector<BucketImage>& images) {
  if (known_.size() + in_vain_.size() < kManyMarkers + 2 * images.size()) return;
  std::set<BucketKey> kept;
  for (const BucketImage& image : images) kept.insert(KeyOf(image));
  std::erase_if(known_, [&](const auto& one) { return !kept.contains(one.first); });
  std::erase_if(in_vain_, [&](const BucketKey& key) { return !kept.contains(key); });
}

const v1::Image* BucketMarkers::Find(const BucketKey& key) const {
  const auto known = known_.find(key);
  return known == known_.end() ? nullptr : &known->second;
}

std::map<std::string, std::string> JobsOf(absl::string_view markers) {
  std::map<std::string, std::string> jobs;
  for (const v1::Image& image : ImagesOfMarkers(markers)) {
    std::string job = JobOf(image);
    if (!OriginOf(image).empty() && !job.empty()) jobs[IdOf(OriginOf(image))] = std::move(job);
  }
  return jobs;
}

const BucketImage* NewestOfRival(const std::vector<BucketImage>& images,
                                 const std::map<std::string, std::string>& jobs) {
  const auto job_of = [&](const BucketImage& image) {
    const auto it = jobs.find(image.origin);
    return it == jobs.end() ? std::string() : it->second;
  };
  if (images.empty()) return nullptr;
  const std::string job = job_of(images.front());
  const BucketImage* rival = nullptr;
  bool same_again = false;
  for (auto image = images.rbegin(); image != images.rend() && !job.empty(); ++image) {
    const std::string other = job_of(*image);
    if (other == job) same_again = true;
    if (same_again && !other.empty() && other != job) rival = &*image;
  }
  return rival;
}

}  // namespace rekindle::cli
