// What images are labelled with, wherever their labels are: in the catalog, or in an answer of the API.
#pragma once

#include <string>

namespace rekindle {

// Of a map of strings; empty where there is no such label.
template <typename Labels>
std::string LabelOf(const Labels& labels, const char* key) {
  const auto label = labels.find(key);
  return label == labels.end() ? std::string() : label->second;
}

}  // namespace rekindle
