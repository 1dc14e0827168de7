// Which queries of a packed batch are here, and where their documents' keys are.
#pragma once
#include <cstdint>
#include <vector>

namespace scalewright {

/// `length` consecutive queries of one document: rows first_row .. of q, positions first_position .. of the document.
struct QuerySegment {
  int64_t document, first_row, first_position, length;
};

/// Keys of whole documents, offsets[d] .. offsets[d+1]-1 for document d; queries of all of them, or (context parallelism) of parts.
/// Segments are sorted by document and cover the rows of q in their order.
struct AttentionRows {
  std::vector<int64_t> offsets;
  std::vector<QuerySegment> segments;

  /// Every query is here.
  static AttentionRows whole(const std::vector<int64_t>& offsets) {
    AttentionRows rows{offsets, {}};
    for (std::size_t d = 0; d + 1 < offsets.size(); ++d)
      rows.segments.push_back({static_cast<int64_t>(d), offsets[d], 0, offsets[d + 1] - offsets[d]});
    return rows;
  }
  int64_t queries() const {
    int64_t n = 0;
    for (const QuerySegment& segment : segments) n += segment.length;
    return n;
  }
};

}  // namespace scalewright
