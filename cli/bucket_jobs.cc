#include "cli/bucket_jobs.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "cli/copy_source.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {
namespace {

using MarkerJson = nlohmann::json;

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
  std::vector<v1::Image> images;
  std::istringstream in{std::string(markers)};
  for (MarkerJson marker; !(in >> std::ws).eof();) {
    try {
      in >> marker;
    } catch (const MarkerJson::exception&) {
      break;
    }
    images.push_back(ImageIn(marker));
  }
  return images;
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
