#include "cli/bucket_jobs.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "rekindle/v1/image_layout.h"

namespace rekindle::cli {
namespace {

using Json = nlohmann::json;

std::string TextAt(const Json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

}  // namespace

std::map<std::string, std::string> JobsOf(absl::string_view markers) {
  std::map<std::string, std::string> jobs;
  std::istringstream in{std::string(markers)};
  for (Json marker; !(in >> std::ws).eof();) {
    try {
      in >> marker;
    } catch (const Json::exception&) {
      break;
    }
    const Json image = marker.is_object() ? marker.value("image", Json()) : Json();
    const Json labels = image.is_object() ? image.value("labels", Json()) : Json();
    std::string origin = TextAt(labels, v1::kOriginLabel);
    if (origin.empty()) origin = TextAt(image, "digest");
    // The mark stays the same in all its lives, the process is the job where there is none.
    std::string job = TextAt(labels, v1::kJobMarkLabel);
    if (job.empty()) job = TextAt(labels, v1::kJobIdLabel);
    if (!origin.empty() && !job.empty()) jobs[IdOf(origin)] = std::move(job);
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
